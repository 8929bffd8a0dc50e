//go:build !race

package main

// raceDetector says that memory is shadowed: a program of these tests takes more of it.
const raceDetector = false
