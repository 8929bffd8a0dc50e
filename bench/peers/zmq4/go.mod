module github.com/kvatlas/kvatlas/bench/peers/zmq4

go 1.26.0

require (
	github.com/kvatlas/kvatlas v0.0.0
	github.com/pebbe/zmq4 v1.4.0
)

require (
	golang.org/x/crypto v0.59.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/kvatlas/kvatlas => ../../..
