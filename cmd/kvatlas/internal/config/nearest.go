package config

import "fmt"

// didYouMean is a clause that names the known word nearest to a wrong one, or
// nothing when none is near.
func didYouMean(wrong string, known []string) string {
	best, bestDistance := "", 2+len(wrong)/8
	for _, k := range known {
		if d := editDistance(wrong, k); d <= bestDistance {
			if best == "" || d < bestDistance {
				best, bestDistance = k, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", best)
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
