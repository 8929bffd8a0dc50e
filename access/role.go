package access

import "fmt"

// Role is what a caller may do. Each role may do what the ones before it may.
type Role uint8

const (
	// None may ask for health and the API's description only.
	None Role = iota
	// Read may ask: score, route, book and report requests, list pods, models and loads.
	Read
	// Write may also change what the index knows: blocks, events, pods, loads and settings.
	Write
	// Admin may also dump, restore and reset the index, and see what engines' events hold.
	Admin
)

var roleNames = [...]string{None: "none", Read: "read", Write: "write", Admin: "admin"}

// String is the role's name in files, settings and messages.
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("Role(%d)", uint8(r))
}

// ParseRole reads the name of a role.
func ParseRole(name string) (Role, error) {
	for r, n := range roleNames {
		if n == name {
			return Role(r), nil //nolint:gosec // the table has four
		}
	}
	return None, fmt.Errorf("access: %q is no role: none, read, write or admin", name)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Role) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRole(string(text))
	return err
}
