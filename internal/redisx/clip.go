package redisx

// Clip keeps a refused value readable in an error message.
func Clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
