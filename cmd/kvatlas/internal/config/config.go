package config

import (
	"errors"
	"fmt"
	"time"
)

// Config is everything that can be set of kvatlas serve, of each noun in a file of its own.
// The comment of a field is also its help text and its row in docs/configuration.md;
// default and bounds stand in the tags. The order is that of the document.
type Config struct {
	// File is the YAML file to read, of at most 1 MiB. A setting in it is weaker
	// than a variable and a flag.
	File string `name:"config" section:"File"`

	httpSettings
	accessSettings
	limitSettings
	shutdownSettings
	gatewaySettings
	indexSettings
	replicaSettings
	ingestSettings
	podSettings
	snapshotSettings
	lmcacheSettings
	lmcacheFeedSettings
	scoringSettings
	tokenizationSettings
	chatSettings
	logSettings
}

// scoringSettings are how blocks become scores.
type scoringSettings struct {
	// Strategy says how held blocks become a score where a request does not.
	Strategy string `name:"strategy" default:"longest_prefix" oneof:"longest_prefix,highest_block,coverage" section:"Scoring"`
	// TierWeights are what a block counts by the best tier that holds it, each
	// within 0 and 1000, as gpu=1,cpu=0.8; tiers left out keep their default.
	TierWeights Weights `name:"tier-weights" default:"gpu=1,cpu=0.8,disk=0.5,shared=0.3"`
	// ScoreBudget is how long the index may take before an answer is given
	// without the rest, marked as degraded.
	ScoreBudget time.Duration `name:"score-budget" default:"50ms" min:"1ms" max:"1m"`
	// UsageWindow is the time over which uses of a block are counted for the
	// frequencies in an answer. 0 does not count.
	UsageWindow time.Duration `name:"usage-window" default:"0s" min:"0s" max:"720h"`
}

// logSettings are what is written to the log.
type logSettings struct {
	// LogLevel is the least important kind of line that is written.
	LogLevel string `name:"log-level" default:"info" oneof:"debug,info,warn,error" section:"Log"`
	// LogFormat is json for machines, console for people, or auto: console where the log
	// goes to a terminal, and json elsewhere. NO_COLOR in the environment leaves out colours.
	LogFormat string `name:"log-format" default:"auto" oneof:"auto,json,console"`
	// AccessLog says which requests to the API have a line at level info: problems are those
	// that fail or take longer than a second, and dumps, restores and resets; all are all but
	// probes. At level debug each request has a line.
	AccessLog string `name:"access-log" default:"problems" oneof:"problems,all"`
}

// validate checks the form of texts and the rules between settings. Each
// setting has passed its own limits when it is called.
func (c *Config) validate() error {
	return errors.Join(
		c.validateHTTP(), c.validateAccess(), c.validateIndex(), c.validateScoring(), c.validateIngest(), c.validatePods(),
		c.validateLMCache(), c.validateFeed(), c.validateTokenization(), c.validateGateway(),
	)
}

// validateScoring checks the rules of scores.
func (c *Config) validateScoring() error {
	if c.UsageWindow != 0 && c.UsageWindow < time.Second {
		return fmt.Errorf("usage-window: %v is too short, give 0 or at least 1s", c.UsageWindow)
	}
	return nil
}
