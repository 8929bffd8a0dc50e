// Package check renders the Helm chart as helm does. It reads what comes out and the
// manifests of deploy/kubernetes strictly into the types of Kubernetes' API. An unknown,
// repeated or mistyped field is an error. It is a module of its own, so that Helm and these
// types are not among the dependencies of kvatlas.
package check
