//go:build !kvatlas_invariants

package invariants

// Enabled reports whether the checks are built in.
const Enabled = false
