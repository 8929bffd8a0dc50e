// Package program runs the main function of a benchmark program.
package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
)

// Main runs a program until it ends or is interrupted. An error goes to standard error behind
// the program's name, and its exit status is 1 then.
func Main(name string, run func(context.Context) error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}
