// Package enginemap is the form of the map of a generation: which engine blocks its index
// blocks are made of. It has entries and changes of them as rows of bytes, and the pages
// that changes are compacted into. It has a view of a list of changes as it is read. It does
// no I/O; store/redis reads and writes lists and pages.
package enginemap
