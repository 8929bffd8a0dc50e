# kvatlas: build, try, test. `make` alone lists the targets.

GO      ?= $(shell command -v go || echo /usr/local/go/bin/go)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
# What benchmarks to run and for how long: make bench BENCH=Lookup BENCHTIME=2s PKG=./store/...
BENCH     ?= .
BENCHTIME ?= 1s
PKG       ?= ./...
# Further flags of the demonstration: make run RUN="--listen 127.0.0.1:9090"
RUN       ?=
# How many texts: make soak SOAK=100000
SOAK      ?= 10000000
TOKENIZERS := .cache/tokenizers

.DEFAULT_GOAL := help
.PHONY: help run test-all build tokenizers models engines lmcache test interop lint audit bench soak real goldens charts dist clean FORCE

help: ## list these targets
	@echo "kvatlas $(VERSION)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## build all that is needed and show a ranking on a real prompt; serves on 127.0.0.1:8080 until Ctrl-C
	@echo "== run, step 1 of 4: tokenizer library, and Go packages beside it (3 minutes the first time on 2 idle cores, 10 on busy ones)"
	@scripts/build-libtokenizers.sh --beside scripts/go-progress.sh parts -buildvcs=false ./cmd/kvatlas
	@echo "== run, step 2 of 4: bin/kvatlas (half a minute the first time)"
	@$(MAKE) --no-print-directory bin/kvatlas
	@echo "== run, step 3 of 4: a real tokenizer"
	@scripts/fetch-tokenizers.sh --run
	@echo "== run, step 4 of 4: the server, three pods and a prompt"
	@exec bin/kvatlas serve --demo --tokenizers $(TOKENIZERS) $(RUN)

build: tokenizers bin/kvatlas ## build bin/kvatlas

# The go command knows best whether there is anything to do.
bin/kvatlas: FORCE
	@echo "kvatlas: building bin/kvatlas $(VERSION)"
	@scripts/go-progress.sh build -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)" -o $@ ./cmd/kvatlas

tokenizers: ## put libtokenizers.a, which the program links with, into lib/
	@scripts/build-libtokenizers.sh

models: ## prepare the tokenizers that the tests load, in .cache/tokenizers
	@scripts/fetch-tokenizers.sh

engines: ## prepare the publishers and caches of vLLM and SGLang that tests run, in .cache/engines
	@scripts/fetch-engines.sh

lmcache: ## prepare the parts of LMCache that tests run, in .cache/lmcache
	@scripts/fetch-lmcache.sh

test: ## install what the tests need and run them: gofmt, go vet, go test (RACE=1: with the race detector); without other projects' code
	@scripts/test.sh

test-all: export RACE = 1
test-all: test interop ## make test with the race detector, and then the tests that it puts off: with the code of engines, LMCache and clients (downloads 450 MB)

interop: ## fetch other projects' code, and run the tests that the last make test has put off
	@scripts/interop.sh

lint: tokenizers ## check the policy of .golangci.yml
	@scripts/lint.sh

audit: ## check licences and known vulnerabilities of all that the program is built from
	@scripts/audit.sh

dist: ## build what a release has into dist/: a static program, an SBOM, sums (DIST="linux-amd64 linux-arm64" for both)
	@VERSION=$(VERSION) scripts/dist.sh $(DIST)

charts: ## render the Helm chart and read it and the Kubernetes manifests strictly, in a module of its own
	cd deploy/check && $(GO) test .

bench: tokenizers models ## run the Go benchmarks (BENCH=regexp, BENCHTIME=1s, PKG=./...)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

soak: models tokenizers engines ## random histories for half an hour, and ten million texts within the memory that they had (SOAK=n for another number)
	@echo "== soak, step 1 of 4: caches of engines, 20,000 requests each"
	KVATLAS_TEST_REQUESTS=20000 $(GO) test ./internal/enginetest -run TestCaches -timeout 12h
	@echo "== soak, step 2 of 4: simulated engines, 5,000 requests each"
	KVATLAS_TEST_REQUESTS=5000 $(GO) test ./sim/wire -run TestPrediction -timeout 12h
	@echo "== soak, step 3 of 4: indexes in memory and in Redis, keys that are lost, Redis set back"
	$(GO) test ./store/memory ./store/redis ./store/replica -run 'Histories|Contract' -timeout 12h -args -rapid.checks=1000
	KVATLAS_TEST_LOSS_ROUNDS=5000 KVATLAS_TEST_SET_BACK_ROUNDS=100 $(GO) test ./store/redis ./store/replica -run 'TestLossesAgainstAModel|TestSetBack' -timeout 12h
	@echo "== soak, step 4 of 4: $(SOAK) texts"
	KVATLAS_SOAK=$(SOAK) $(GO) test ./tokenpool -run Soak -v -timeout 12h
	KVATLAS_TEST_TEXTS=$(SOAK) KVATLAS_TEST_LENGTH=40 $(GO) test ./tokenpool/internal/bpe -run RandomTexts -v -timeout 12h

real: build ## hold predictions against a real vLLM on this machine's CPU (5 minutes; downloads 1 GB the first time)
	@real/run.sh

goldens: models ## make testdata/tokens anew with the reference library (needs Python)
	scripts/make-token-goldens.py

clean: ## remove what the build made; libraries cached for other checkouts stay
	rm -rf bin dist lib .cache tokenpool/internal/link/zz_stamp.go

FORCE:
