#!/usr/bin/env bash
# Build what a release consists of into dist/: for each platform an archive with a static program and an
# SBOM, and SHA256SUMS over all.
#
#   scripts/dist.sh                            for this machine's platform
#   scripts/dist.sh linux-amd64 linux-arm64    for these
#
# The program is linked statically with glibc: nothing of the machine that it runs on is loaded. Names and
# users are looked up by Go's own code (netgo, osusergo), since glibc's needs its shared libraries.
# VERSION in the environment is what it calls itself; else git describe says it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root"
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=dist
start=$SECONDS
step() { printf '\n== dist [%ds]: %s\n' $((SECONDS - start)) "$*"; }
readonly cyclonedx=1.10.0 # Apache-2.0; a program of its own, run and not linked
platforms=("$@")
need_go "$name"
[ ${#platforms[@]} -gt 0 ] || platforms=("$(go env GOHOSTOS)-$(go env GOHOSTARCH)")
need_cxx "$name"
need_tool "$name" python3 python3 "it adds the Rust crates to the SBOM"
version=${VERSION:-$(git describe --tags --always --dirty)}
# Archives of one commit are alike: all files have its time.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
rm -rf dist
mkdir -p dist

for platform in "${platforms[@]}"; do
  os=${platform%-*} arch=${platform#*-}
  export GOOS=$os GOARCH=$arch CGO_ENABLED=1
  unset CC CXX CGO_LDFLAGS
  step "$platform: tokenizer library"
  scripts/build-libtokenizers.sh
  if [ "$platform" != "$(go env GOHOSTOS)-$(go env GOHOSTARCH)" ]; then
    case $platform in
      linux-arm64) tools=aarch64-linux-gnu ;;
      linux-amd64) tools=x86_64-linux-gnu ;;
      *) die "$name" "it cannot be built for $platform here" ;;
    esac
    export CC=$tools-gcc CXX=$tools-g++ CGO_LDFLAGS="-L$root/lib/$platform"
  fi

  step "$platform: kvatlas $version"
  folder=kvatlas-$version-$platform
  mkdir -p "dist/$folder"
  go build -trimpath -buildvcs=false -tags netgo,osusergo -ldflags "-s -w -linkmode external -extldflags -static -X main.version=$version" -o "dist/$folder/kvatlas" ./cmd/kvatlas
  need_tool "$name" readelf binutils "it shows that nothing is loaded"
  ! readelf -l "dist/$folder/kvatlas" | grep -q INTERP || die "$name" "dist/$folder/kvatlas is not static"

  step "$platform: SBOM, CycloneDX"
  # By what the program says that it was built from, and the crates beside it.
  tool=$root/.cache/bin/cyclonedx-gomod
  [ "$(go version -m "$tool" 2>/dev/null | awk '$1 == "mod" { print $3 }')" = "v$cyclonedx" ] ||
    env -u GOOS -u GOARCH -u CC -u CXX -u CGO_LDFLAGS GOBIN="$root/.cache/bin" GOFLAGS='' go install "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v$cyclonedx"
  "$tool" bin -json -licenses -std -noserial -notimestamp -version "$version" -output "dist/$folder.cdx.json" "dist/$folder/kvatlas" 2>"dist/$folder.log" ||
    die "$name" "no SBOM: $(tail -n 3 "dist/$folder.log")"
  rm "dist/$folder.log"
  # What the tokenizer library is linked from: the crates that rust/Cargo.lock pins.
  python3 - "dist/$folder.cdx.json" rust/Cargo.lock <<'PYTHON'
import json, sys, tomllib
bom, lock = sys.argv[1:]
with open(bom, encoding="utf-8") as f:
    doc = json.load(f)
with open(lock, "rb") as f:
    crates = tomllib.load(f)["package"]
have = {c.get("purl") for c in doc.setdefault("components", [])}
for c in crates:
    purl = f"pkg:cargo/{c['name']}@{c['version']}"
    if "source" not in c or purl in have:
        continue
    one = {"bom-ref": purl, "type": "library", "name": c["name"], "version": c["version"], "purl": purl, "scope": "required"}
    if "checksum" in c:
        one["hashes"] = [{"alg": "SHA-256", "content": c["checksum"]}]
    doc["components"].append(one)
with open(bom, "w", encoding="utf-8") as f:
    json.dump(doc, f, indent=1, sort_keys=True)
    f.write("\n")
print(len(doc["components"]), "components")
PYTHON

  step "$platform: archive"
  cp LICENSE README.md CHANGELOG.md "dist/$folder/"
  mkdir "dist/$folder/completions"
  for shell in bash zsh fish; do cp "cmd/kvatlas/internal/completion/kvatlas.$shell" "dist/$folder/completions/"; done
  tar -C dist --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$folder" | gzip -n >"dist/$folder.tar.gz"
  rm -rf "dist/${folder:?}"
done

(cd dist && sha256sum -- *.tar.gz *.cdx.json >SHA256SUMS)
step "done"
ls -l dist
