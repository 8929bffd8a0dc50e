package store

import (
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockkey"
)

// maskSeed is the seed of the model's hash; the same as that of the native
// block keys.
const maskSeed = 1337

// Mask returns the mask of a model: XXH3-64 of its name with seed 1337. It
// stands in Query.Model, and an Index mixes it into the keys of a Batch, which
// names its model. Keys of another scheme than native are kept apart by their
// writers and readers, who XOR the scheme's mask into them.
func Mask(model string) blockkey.Model {
	return blockkey.Model(xxh3.HashStringSeed(model, maskSeed))
}
