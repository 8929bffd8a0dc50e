package admin

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
	"github.com/kvatlas/kvatlas/store/snapshot"
)

const resetUsage = `kvatlas reset makes an index forget, at a cost that does not depend on its size.

  kvatlas reset --pod POD       remove a pod
  kvatlas reset --model MODEL   clear all pods that are registered for the model,
                                and forget its index block size
  kvatlas reset --all           remove all pods and forget all models

It is the index of the server at --server, or with --redis the one in Redis. The
command asks for the name, or "all", before it does anything, unless --yes is given.

`

// Reset is the command.
func Reset(ctx context.Context, p *cli.Program, args []string) int {
	fs := flag.NewFlagSet("kvatlas reset", flag.ContinueOnError)
	at := placeFlags(p, fs)
	var t snapshot.Target
	fs.StringVar(&t.Model, "model", "", "the `model` to forget")
	fs.StringVar(&t.Pod, "pod", "", "the `pod` to remove")
	fs.BoolVar(&t.All, "all", false, "forget everything")
	yes := fs.Bool("yes", false, "do not ask")
	if status, done := p.ParseFlags("reset", resetUsage, fs, args); done {
		return status
	}
	given := 0
	for _, is := range []bool{t.Model != "", t.Pod != "", t.All} {
		if is {
			given++
		}
	}
	if given != 1 {
		return p.Misuse("reset", errors.New("give one of --model, --pod and --all"))
	}
	if err := at.open(p, fs, "reset"); err != nil {
		return p.Misuse("reset", err)
	}
	defer at.close()
	if !*yes {
		if err := at.hasPod(ctx, t.Pod); err != nil {
			return p.Fail("reset", err)
		}
		about, word := fmt.Sprintf("All pods and models of the index at %s are forgotten.", at), "all"
		switch {
		case t.Model != "":
			about, word = fmt.Sprintf("What the pods hold that are registered for the model %s at %s is forgotten, and its index block size.", terminal.Printable(t.Model), at), t.Model
		case t.Pod != "":
			about, word = fmt.Sprintf("The pod %s is removed from the index at %s.", terminal.Printable(t.Pod), at), t.Pod
		}
		if err := confirm(p, about, word); err != nil {
			return p.Fail("reset", err)
		}
	}
	pods, models, err := at.reset(ctx, t)
	if err != nil {
		return p.Fail("reset", at.failure(err))
	}
	what := "removed"
	if t.Model != "" {
		what = "cleared"
	}
	fmt.Fprintf(p.Stderr, "%d pods %s, %d models forgotten\n", pods, what, models)
	return cli.ExitOK
}

// hasPod is an error when the index says that it does not know the pod: then there is
// nothing to ask for. "" is no pod. Other errors are left to the reset itself.
func (at *place) hasPod(ctx context.Context, pod string) error {
	switch {
	case pod == "":
	case at.client != nil:
		_, err := at.client.Pod(ctx, pod)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "unknown_pod" {
			return at.failure(err)
		}
	default:
		reg, err := at.index.Registry(ctx)
		if err != nil {
			return at.failure(err)
		}
		if _, ok := reg.PodIndex(pod); !ok {
			return fmt.Errorf("there is no pod %s in the index at %s", terminal.Printable(pod), at)
		}
	}
	return nil
}

// reset makes the index forget. What it does not know is an error.
func (at *place) reset(ctx context.Context, t snapshot.Target) (pods, models int, err error) {
	if at.client != nil {
		r, err := at.client.Reset(ctx, client.ResetRequest{Model: t.Model, Pod: t.Pod, All: t.All})
		if err != nil {
			return 0, 0, err
		}
		return r.Pods, r.Models, nil
	}
	r, err := snapshot.Reset(ctx, at.index, t)
	if err == nil && !t.All && r == (snapshot.Resets{}) {
		err = fmt.Errorf("there is no %s in the index at %s", t, at)
	}
	return r.Pods, r.Models, err
}
