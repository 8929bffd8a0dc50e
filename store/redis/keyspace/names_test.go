package keyspace

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/store"
)

const slots = 16384

func TestSlotVector(t *testing.T) {
	// The check value of CRC16/XMODEM.
	if got := Slot("123456789"); got != 0x31c3 {
		t.Fatalf("slot is %#x, want 0x31c3", got)
	}
}

// TestTags derives the table of Tags from its rule.
func TestTags(t *testing.T) {
	if len(Tags) != blockkey.Partitions {
		t.Fatalf("%d tags for %d partitions", len(Tags), blockkey.Partitions)
	}
	order := "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + "!#$%&'()+,-./:;<=>@^_`|~"
	for b := 1; b < 256; b++ {
		// Left out are braces, which would end the tag, quotes and backslash,
		// space, what patterns use, and the control characters of text lines.
		if !strings.Contains(order, string([]byte{byte(b)})) && !strings.ContainsRune("{}\"\\ *?[]\t\n\r", rune(b)) {
			order += string([]byte{byte(b)})
		}
	}
	for p := range Tags {
		for i := range order {
			if tag := order[i : i+1]; Slot(tag)/256 == p {
				if Tags[p:p+1] != tag {
					t.Errorf("partition %d has the tag %q, the rule gives %q", p, Tags[p:p+1], tag)
				}
				break
			}
		}
	}
}

// TestTagsAreEven counts partitions a master when a cluster splits the slots
// evenly, as redis-cli --cluster create does.
func TestTagsAreEven(t *testing.T) {
	for masters := 1; masters <= 64; masters++ {
		count := make([]int, masters)
		for p := range Tags {
			for m := range masters {
				// The bounds that redis-cli computes.
				first := int(float64(m)*slots/float64(masters) + 0.5)
				next := int(float64(m+1)*slots/float64(masters) + 0.5)
				if s := Slot(Tags[p : p+1]); s >= first && s < next {
					count[m]++
				}
			}
		}
		lo, hi := 64, 0
		for _, n := range count {
			lo, hi = min(lo, n), max(hi, n)
		}
		if masters == 3 || masters == 6 {
			t.Logf("%d masters: %v", masters, count)
		}
		// A bound that cuts through the 256 slots of a tag moves one partition.
		allowed := 2
		if masters > 16 {
			allowed = 3
		}
		if hi-lo > allowed {
			t.Errorf("%d masters have between %d and %d partitions: %v", masters, lo, hi, count)
		}
	}
}

func TestBlockNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := NewNames(rapid.SampledFrom([]string{"kva", "k", "a:b", "x-1_2"}).Draw(t, "prefix"))
		k := blockkey.StoreKey(rapid.Uint64().Draw(t, "key"))
		name := string(n.AppendBlock(nil, k))
		if len(name) != n.BlockLen() {
			t.Fatalf("%q has %d bytes, want %d", name, len(name), n.BlockLen())
		}
		if got, ok := n.ParseBlock(name); !ok || got != k {
			t.Fatalf("%q reads as %x, %v; want %x", name, got, ok, k)
		}
		if want := Tags[k%64 : k%64+1]; name[len(n.Prefix)+1:len(n.Prefix)+2] != want {
			t.Fatalf("%q does not have the tag %q", name, want)
		}
	})
}

// TestControlKeysAreNoBlocks guards the rule that no control key can be read as
// a block's name.
func TestControlKeysAreNoBlocks(t *testing.T) {
	n := NewNames("kva")
	control := []string{n.Meta, n.Count, n.Epoch, n.Pods, n.Live, n.Gen, n.Sweep}
	for l := range store.MaxPodName + 1 {
		control = append(control, n.Own(strings.Repeat("p", l)))
	}
	for p := range n.Blocks {
		control = append(control, n.High(p), n.Blocks[p]+":s", n.Blocks[p]+":log")
	}
	for _, name := range control {
		if k, ok := n.ParseBlock(name); ok {
			t.Errorf("%q reads as the block %x", name, k)
		}
	}
	for _, name := range []string{"", "kva", "kva{a}", "kva{\x04}1234567", "kva{\x04}123456789", "kva{\x04}1234567\x01", "kvb{\x04}1234567\x40"} {
		if _, ok := n.ParseBlock(name); ok {
			t.Errorf("%q reads as a block", name)
		}
	}
}

// TestWorkedExample is the example in docs/redis-schema.md, so that the document
// stays true.
func TestWorkedExample(t *testing.T) {
	mask := blockkey.ModelOf("meta-llama/Llama-3.1-8B")
	if uint64(mask) != 0x6f47ea9c9dc7b735 {
		t.Errorf("the mask is %016x", uint64(mask))
	}
	for _, c := range []struct {
		key       blockkey.Key
		store     string
		partition int
		name      string
	}{
		{1675479374679433266, "78079501a1855707", 7, "6b76617b3b7d78079501a1855707"},
		{15138076886435007231, "bd52aa25bb453dca", 10, "6b76617b517dbd52aa25bb453dca"},
	} {
		k := c.key.In(mask)
		if got := fmt.Sprintf("%016x", uint64(k)); got != c.store || k.Partition() != c.partition {
			t.Errorf("%s: store key %s in partition %d, want %s in %d", c.key, got, k.Partition(), c.store, c.partition)
		}
		if got := hex.EncodeToString(NewNames("kva").AppendBlock(nil, k)); got != c.name {
			t.Errorf("%s: got the name %s, want %s", c.key, got, c.name)
		}
		name, tag, err := BlockName("kva", k)
		if hex.EncodeToString([]byte(name)) != c.name || tag != name[4:5] || err != nil {
			t.Errorf("%s: BlockName gives %x, %x, %v", c.key, name, tag, err)
		}
	}
	if name, _, err := BlockName("a{b", 0); err == nil {
		t.Errorf("a prefix with a brace gives %q", name)
	}
}

// The keys of a model have the tag of the block that its own hash would be.
func TestModelKeys(t *testing.T) {
	for _, model := range []string{"m", "org/model", ""} {
		_, tag, err := BlockName("kva", blockkey.StoreKey(blockkey.ModelOf(model)))
		must.OK(t, err)
		got := ModelKeys("kva", model)("l")
		if want := "kva" + "{" + tag + "}:l:" + blockkey.Key(blockkey.ModelOf(model)).String(); got != want {
			t.Errorf("%q: got %q, want %q", model, got, want)
		}
	}
}
