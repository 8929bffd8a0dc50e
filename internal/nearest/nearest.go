// Package nearest finds, for a word that is not known, the known one that was probably
// meant. Its functions are pure, and their cost is bounded whatever the word is.
package nearest

import "strings"

// maxLength is the longest word, in bytes, for which a near one is looked for. No name that
// a person types is longer, and the cost grows with the square.
const maxLength = 64

// Clause returns " (did you mean WORD?)" with the known word that is nearest to wrong, or ""
// when none is near. It is to be put behind an error. Upper and lower case are alike. Near
// are one or two letters that differ, more in a long word, or else the one word that begins
// with it.
func Clause(wrong string, known []string) string {
	if w := Word(wrong, known); w != "" {
		return " (did you mean " + w + "?)"
	}
	return ""
}

// Word returns the known word that is nearest to wrong, or "" when none is near.
func Word(wrong string, known []string) string {
	if wrong == "" || len(wrong) > maxLength {
		return ""
	}
	wrong = strings.ToLower(wrong)
	best, bestDistance := "", min(len(wrong)-1, 2+len(wrong)/8)
	begin, begins := "", 0
	for _, k := range known {
		lower := strings.ToLower(k)
		// Of equally near ones that with as many letters: they are more often mixed up than left out.
		if d := distance(wrong, lower); d < bestDistance || d == bestDistance && (best == "" || len(k) == len(wrong) && len(best) != len(wrong)) {
			best, bestDistance = k, d
		}
		if strings.HasPrefix(lower, wrong) {
			begin, begins = k, begins+1
		}
	}
	if best == "" && begins == 1 && len(wrong) > 2 {
		return begin
	}
	return best
}

// distance is Levenshtein's, in bytes, where two neighbours that changed places are one step.
func distance(a, b string) int {
	var before []int // the row before the last one
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := row[j]
			if a[i] != b[j] {
				cost = 1 + min(row[j], row[j+1], next[j])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cost = min(cost, before[j-1]+1)
			}
			next[j+1] = cost
		}
		before, row = row, next
	}
	return row[len(b)]
}
