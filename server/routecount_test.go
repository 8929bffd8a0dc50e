package server

// RouteCount is how many routes there are, for tests from outside.
func RouteCount() int { return len((&Server{}).routeTable()) }
