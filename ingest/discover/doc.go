// Package discover finds the pods of a fleet and keeps them registered in an index. They
// are those of a list ([List]), of a DNS name ([DNS]) or of Kubernetes ([Kubernetes]). It
// also finds what their engines say about themselves ([Asker]).
//
// A [Registrar] registers what is found with a lease, and renews it for as long as it is
// found. So a pod that no replica finds any more is gone from the index when the lease is
// over. A source that knows of ends has its pods retired at once. A pod that is another
// one than before, or whose engine was restarted, begins a new life. Registrations made
// by others, over HTTP for instance, are left alone, unless they are of the same name.
//
// Any number of replicas may do this at the same time: they write the same.
package discover
