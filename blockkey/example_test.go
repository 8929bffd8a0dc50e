package blockkey_test

import (
	"fmt"

	"github.com/kvatlas/kvatlas/blockkey"
)

func ExampleAppendNative() {
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9} // two blocks of 4 and a rest

	for _, key := range blockkey.AppendNative(nil, prompt, 4, blockkey.NativeSeed("", "")) {
		fmt.Println(key)
	}
	fmt.Println("with a LoRA adapter and a cache salt:")
	for _, key := range blockkey.AppendNative(nil, prompt, 4, blockkey.NativeSeed("my-lora", "tenant-a")) {
		fmt.Println(key)
	}
	// Output:
	// cb38e4d7fb2dca5c
	// 44a2b2379d6d3c3d
	// with a LoRA adapter and a cache salt:
	// 55754b59eba4a7e7
	// 879955b9960f02dd
}

// A chain goes on where an engine's event names the parent block.
func ExampleChain() {
	seed := blockkey.NativeSeed("", "")
	first := blockkey.AppendNative(nil, []uint32{1, 2, 3, 4}, 4, seed)

	chain := blockkey.Chain{BlockSize: 4, Seed: seed, Parent: first[0], HasParent: true}
	keys := chain.Append(nil, []uint32{5, 6, 7, 8, 9})
	fmt.Println(keys, chain.Parent == keys[0])
	// Output:
	// [44a2b2379d6d3c3d] true
}

// The store key of a block has the model in it, and names the partition.
func ExampleKey_In() {
	keys := blockkey.AppendNative(nil, []uint32{1, 2, 3, 4}, 4, blockkey.NativeSeed("", ""))
	stored := keys[0].In(blockkey.ModelOf("meta-llama/Llama-3.1-8B-Instruct"))
	fmt.Printf("%x in partition %d\n", stored.Bytes(), stored.Partition())
	// Output:
	// ca56167759dec5ad in partition 45
}
