// Package config holds the one configuration of kvatlas serve.
//
// Each setting is a field of Config and has three spellings by one rule: the
// flag --score-budget, the variable KVATLAS_SCORE_BUDGET and the key
// score-budget of the YAML file that --config names. A flag is stronger than a
// variable, a variable than the file, the file than the default. All of them
// carry the same text through the same parser, so a value means the same
// wherever it stands.
//
//	fs := flag.NewFlagSet("kvatlas serve", flag.ContinueOnError)
//	l := config.NewLoader(fs)
//	if err := fs.Parse(args); err != nil { ... }
//	loaded, err := l.Load(os.Environ(), config.ReadFile)
//
// What would never be read is an error: an unknown flag, key or KVATLAS_
// variable, with the nearest known name beside it. All errors of a load are
// reported at once, each with the place that the value came from. Secrets are
// never part of an error and never printed.
//
// The binder is of the project because none of the usual libraries does all
// three of unknown variables, the origin of a value, and secrets kept out of
// messages; the standard flag package splits the command line.
package config
