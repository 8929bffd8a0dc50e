// Package servercheck looks at one Redis server at a time, as an index finds it, and says in
// [check.Finding] what will cost something. It looks at the server's version and settings,
// what the user may do, the way there, and some of the keys. It changes nothing. store/redis
// asks it for each server, and adds what only the index knows.
package servercheck
