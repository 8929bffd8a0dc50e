// Package route chooses the (pod, rank) that a request goes to.
//
// A Policy weighs with a pure function of a View. The view has the candidates, what each holds of the prompt, what
// runs there, the time and the random numbers. It gives each candidate a cost in a form that the loads' own index can
// bring up to date (loads.Weights). So choice and booking are one step on loads that are true at that moment.
//
//	router, err := route.New(route.Config{Scorer: scorer, Pods: index, Loads: loads.NewMemory(nil)})
//	d, err := router.Route(ctx, route.Request{Score: request, Reserve: true})
//
// Policies are safe for concurrent use; a View belongs to one call.
package route
