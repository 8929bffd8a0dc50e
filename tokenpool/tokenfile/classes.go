package tokenfile

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// class is a class of transformers 5 that takes only the vocabulary, the merges and the
// post-processor out of a tokenizer.json. It has all the rest in its code. The added
// tokens of the file do not count then, where the configuration has some.
type class struct {
	name string
	// defaults are tokens that a tokenizer has unless the configuration names others;
	// an empty one means no such token.
	defaults [][2]string
	// wordPiece says that the model is a WordPiece. It is a BPE else.
	wordPiece bool
	// parts gives the normalizer, the pre-tokenizer, and what is in the model beside
	// vocabulary and merges.
	parts func(s *tokenSettings) (normalizer, preTokenizer any, model dict)
	// again, if set, gives the form in which it adds each special token once more.
	again func(given) given
	// finish, if set, changes the file at the end.
	finish func(file *Object, s *tokenSettings, added []AddedToken)
}

type dict = map[string]any

// generic are the model types that transformers loads by the tokenizer.json alone,
// whatever class their configuration names.
var generic = strings.Fields(`
	EvollaModel aria beam bigbird_pegasus canary flex_olmo glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr
	got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared kimi_k25 kimi_linear kosmos-2
	mimo_v2_flash minicpm_ocr minicpmv4_6 minicpmv4_7 ministral ministral3 mistral mistral3 mistral_large4 mixtral nemo_speechlm
	nystromformer olmo2 olmo3 olmo_hybrid omniasr pegasus_x persimmon pix2struct pixtral pocket_tts stablelm umt5 voxtral
	voxtral_realtime xlm-roberta-xl modernbert-decoder smolvlm phi3 cohere_asr jamba modernbert arctic ernie4_5_moe internlm3
	hyperclovax camembertv2-base minicpmv phimoe hyperclovax_vlm step3_vl h2ovl_chat openvla fuyu minimax_m2 paddleocr_vl minicpm3
	llava_next nemotron ernie4_5 opencua internlm2 molmo chatlm llava iquestcoder vipllava phi3_v nvfp4 molmo2`)

// ofType are the classes of model types; corrected are those of them that count
// whatever the configuration names.
var (
	ofType = func() map[string]string {
		out := map[string]string{}
		for class, types := range map[string]string{
			"LlamaTokenizer": "idefics idefics2",
			"Qwen2Tokenizer": `audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr
				moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr
				qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice`,
			"Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp",
			"GemmaTokenizer":   "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma zaya",
			"GPT2Tokenizer":    "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo jais2 opt phi starcoder2",
			"BertTokenizer": `align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino layoutlm
				megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm retribert squeezebert tvp vilt visual_bert`,
			"CohereTokenizer":  "aya_vision cohere cohere2",
			"GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
		} {
			for _, t := range strings.Fields(types) {
				out[t] = class
			}
		}
		return out
	}()
	corrected = strings.Fields("qwen3_5 qwen3_5_moe hyperclovax_vision_v2 qwen3_5_moe_text qwen4_exp qwen2")
)

// class returns the class that AutoTokenizer takes for the files, nil if that is not one of classes: then
// tokenizer.json is taken as it is.
func (f Files) class(s *tokenSettings) *class {
	var model struct {
		Type  string `json:"model_type"`
		Class string `json:"tokenizer_class"`
	}
	_ = json.Unmarshal(f.Model, &model) // a file that is not an object says nothing
	name, ok := readText(s.raw.Get("tokenizer_class"))
	if !ok {
		name = model.Class
	}
	name = strings.TrimSuffix(name, "Fast")
	registered, isGeneric := ofType[model.Type], slices.Contains(generic, model.Type)
	remote := s.raw.Get("auto_map") != nil
	switch {
	case name == "":
		name = registered
	case remote:
	case name == "LlamaTokenizer" && !slices.Contains(corrected, model.Type) && bytes.Contains(f.Tokenizer, []byte(`"ByteLevel"`)):
		return nil
	case isGeneric:
		return nil
	case registered != "" && slices.Contains(corrected, model.Type):
		name = registered
	}
	if i := slices.IndexFunc(classes, func(c class) bool { return c.name == name }); i >= 0 {
		return &classes[i]
	}
	return nil
}

// build makes the file what the class makes of it. It reports false, and changes
// nothing, where the vocabulary is of another kind than that of the class.
func (c *class) build(file *Object, s *tokenSettings) bool {
	model, err := ReadObject(file.Get("model"))
	if err != nil {
		return false
	}
	if vocab := model.Get("vocab"); len(vocab) == 0 || vocab[0] != '{' {
		return false
	}
	for _, d := range c.defaults {
		if s.raw.find(d[0]) >= 0 {
			continue
		}
		if d[1] == "" {
			s.raw.Set(d[0], json.RawMessage("null"))
		} else {
			s.setDefault(d[0], d[1])
		}
	}
	normalizer, preTokenizer, rest := c.parts(s)
	made := Object{{"type", json.RawMessage(`"BPE"`)}}
	if c.wordPiece {
		made[0].value = json.RawMessage(`"WordPiece"`)
	}
	for _, key := range slices.Sorted(maps.Keys(rest)) {
		made.Set(key, toJSON(rest[key]))
	}
	made.Set("vocab", model.Get("vocab"))
	if merges := model.Get("merges"); !c.wordPiece && merges != nil {
		made.Set("merges", merges)
	} else if !c.wordPiece {
		made.Set("merges", json.RawMessage("[]"))
	}
	file.Set("model", made.AppendJSON(nil))
	file.Set("normalizer", toJSON(normalizer))
	file.Set("pre_tokenizer", toJSON(preTokenizer))
	return true
}

func toJSON(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // of what has a JSON form
	return bytes.TrimSpace(b.Bytes())
}

// flag returns a member that is a boolean, or otherwise what it is when it is missing
// or null.
func (s *tokenSettings) flag(key string, otherwise bool) bool {
	if v := s.raw.Get(key); !IsNull(v) {
		return isTrue(v)
	}
	return otherwise
}

// unknown returns the text of the unknown token. Python writes None for none.
func (s *tokenSettings) unknown() string {
	if t, ok := s.token("unk_token"); ok {
		return t.text
	}
	return "None"
}

func byteLevel(prefix, regex bool) dict {
	return dict{"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex}
}

func inSequence(parts ...dict) dict { return dict{"type": "Sequence", "pretokenizers": parts} }

// qwenParts are those of Qwen2Tokenizer, with the expression of a version.
func qwenParts(pattern string) func(*tokenSettings) (any, any, dict) {
	return func(s *tokenSettings) (any, any, dict) {
		split := dict{"type": "Split", "pattern": dict{"Regex": pattern}, "behavior": "Isolated", "invert": false}
		return dict{"type": "NFC"}, inSequence(split, byteLevel(s.flag("add_prefix_space", false), false)),
			dict{"continuing_subword_prefix": "", "end_of_word_suffix": ""}
	}
}

var qwenDefaults = [][2]string{{"unk_token", "<|endoftext|>"}, {"bos_token", ""}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}}

// classes are those that are known here.
var classes = []class{
	{
		name: "Qwen2Tokenizer", defaults: qwenDefaults, parts: qwenParts(SplitQwen),
		again: func(t given) given { return given{text: t.text, plain: true} },
	},
	{name: "Qwen3_5Tokenizer", defaults: qwenDefaults, parts: qwenParts(SplitQwen35)},
	{
		name:     "LlamaTokenizer",
		defaults: [][2]string{{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}},
		parts: func(s *tokenSettings) (any, any, dict) {
			scheme := "never"
			if s.flag("add_prefix_space", true) {
				if scheme = "first"; s.flag("legacy", false) {
					scheme = "always"
				}
			}
			return nil, dict{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false},
				dict{"fuse_unk": true, "byte_fallback": true}
		},
	},
	{
		name: "GemmaTokenizer",
		defaults: [][2]string{
			{"unk_token", "<unk>"}, {"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"pad_token", "<pad>"}, {"mask_token", "<mask>"},
		},
		parts: func(s *tokenSettings) (any, any, dict) {
			space := dict{"String": " "}
			return dict{"type": "Replace", "pattern": space, "content": "▁"},
				dict{"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": false},
				dict{"fuse_unk": true, "byte_fallback": true, "unk_token": s.unknown()}
		},
	},
	{
		name:     "GPT2Tokenizer",
		defaults: [][2]string{{"unk_token", "<|endoftext|>"}, {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", ""}},
		parts: func(s *tokenSettings) (any, any, dict) {
			return nil, byteLevel(s.flag("add_prefix_space", false), true), dict{"continuing_subword_prefix": "", "end_of_word_suffix": ""}
		},
	},
	{
		name: "CohereTokenizer",
		defaults: [][2]string{
			{"unk_token", "<UNK>"}, {"bos_token", "<BOS_TOKEN>"}, {"eos_token", "<|END_OF_TURN_TOKEN|>"}, {"pad_token", "<PAD>"},
			{"cls_token", "<CLS>"}, {"sep_token", "<SEP>"}, {"mask_token", "<MASK_TOKEN>"},
		},
		parts: func(s *tokenSettings) (any, any, dict) {
			return dict{"type": "NFC"},
				inSequence(dict{"type": "Digits", "individual_digits": true}, byteLevel(s.flag("add_prefix_space", false), true)),
				dict{"continuing_subword_prefix": "", "end_of_word_suffix": ""}
		},
		again: func(t given) given { return t },
	},
	{
		name: "GPTNeoXTokenizer",
		defaults: [][2]string{
			{"unk_token", "<|endoftext|>"}, {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|padding|>"},
		},
		parts: func(s *tokenSettings) (any, any, dict) {
			return dict{"type": "NFC"}, byteLevel(s.flag("add_prefix_space", false), true),
				dict{"continuing_subword_prefix": "", "end_of_word_suffix": ""}
		},
		// No setting puts tokens around a text, and what the file says of it is dropped.
		finish: func(file *Object, _ *tokenSettings, _ []AddedToken) { file.Set("post_processor", toJSON(nil)) },
	},
	{
		name: "BertTokenizer", wordPiece: true,
		defaults: [][2]string{
			{"unk_token", "[UNK]"}, {"sep_token", "[SEP]"}, {"pad_token", "[PAD]"}, {"cls_token", "[CLS]"}, {"mask_token", "[MASK]"},
		},
		parts: func(s *tokenSettings) (any, any, dict) {
			normalizer := dict{
				"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": s.flag("tokenize_chinese_chars", true),
				"lowercase": s.flag("do_lower_case", true), "strip_accents": nil,
			}
			if v := s.raw.Get("strip_accents"); !IsNull(v) {
				normalizer["strip_accents"] = isTrue(v)
			}
			return normalizer, dict{"type": "BertPreTokenizer"}, dict{
				"unk_token": s.unknown(), "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
			}
		},
		finish: bertEnds,
	},
}

// bertEnds puts the two tokens of BERT around a text.
func bertEnds(file *Object, s *tokenSettings, added []AddedToken) {
	end := func(key string, id uint32) (string, dict) {
		t, ok := s.token(key)
		if !ok {
			t.text = "None"
		}
		for _, a := range added {
			if a.Content == t.text {
				id = a.ID
			}
		}
		return t.text, dict{"id": t.text, "ids": []uint32{id}, "tokens": []string{t.text}}
	}
	cls, first := end("cls_token", 2)
	sep, last := end("sep_token", 3)
	token := func(text string, of int) dict {
		return dict{"SpecialToken": dict{"id": text, "type_id": of}}
	}
	sequence := func(name string, of int) dict { return dict{"Sequence": dict{"id": name, "type_id": of}} }
	single := []dict{token(cls, 0), sequence("A", 0), token(sep, 0)}
	file.Set("post_processor", toJSON(dict{
		"type": "TemplateProcessing", "single": single, "pair": append(single[:3:3], sequence("B", 1), token(sep, 1)),
		"special_tokens": dict{cls: first, sep: last},
	}))
}
