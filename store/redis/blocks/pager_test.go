package blocks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

func TestOwnPartitions(t *testing.T) {
	const other = "b1 127.0.0.1:2@3 master - 0 0 1 connected 5461-16383\n"
	mask := func(from, to int) (m uint64) {
		for p := from; p <= to; p++ {
			m |= 1 << p
		}
		return m
	}
	for _, c := range []struct {
		line string
		want uint64
	}{
		{"a0 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383", AllPartitions},
		{"a0 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-8191", mask(0, 31)},
		{"a0 127.0.0.1:1@2,host myself,master - 0 0 1 connected 0-255 512-1023 " + fmt.Sprint(keyspace.SlotOf(40)), mask(0, 0) | mask(2, 3) | mask(40, 40)},
		{"a0 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-8191 [" + fmt.Sprint(keyspace.SlotOf(3)) + "->-b1] [" + fmt.Sprint(keyspace.SlotOf(4)) + "-<-b1]", mask(0, 2) | mask(5, 31)},
		{"a0 127.0.0.1:1@2 myself,slave b1 0 0 1 connected", 0},
		{"a0 127.0.0.1:1@2 myself,master - 0 0 1 connected", 0},
		{"a0 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-99999 x [y", 0},
		{"", 0},
	} {
		for _, text := range []string{c.line + "\n" + other, other + c.line + "\n"} {
			owned, got := ownPartitions(text)
			if got != c.want {
				t.Errorf("%s\ngot  %064b\nwant %064b", c.line, got, c.want)
			}
			if moving := strings.Contains(c.line, ">"); moving != (owned != got) || moving && owned != mask(0, 31) {
				t.Errorf("%s\nowned %064b", c.line, owned)
			}
		}
	}
}
