package redisx

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// Refused tells a server's refusal of a command from an error of the connection.
func Refused(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok && !errors.Is(err, redis.Nil)
}
