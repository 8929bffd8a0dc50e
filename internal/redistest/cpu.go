package redistest

import (
	"time"

	"github.com/kvatlas/kvatlas/internal/cputime"
)

// CPUTime returns the CPU time that the server's main thread has used.
func (s *Server) CPUTime() time.Duration {
	s.tb.Helper()
	info, err := s.Client().Info(s.tb.Context(), "cpu").Result()
	if err != nil {
		s.tb.Fatalf("redistest: %v", err)
	}
	return cputime.Redis(info)
}
