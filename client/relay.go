package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
)

// RecentRequest says which messages of a rank's engine are asked for, by the engine's
// own numbers, both ends included.
type RecentRequest struct {
	// Pod and Rank say whose they are.
	Pod  string
	Rank int
	// From is the first; nil is the oldest that is kept. To is the last; nil is the
	// newest.
	From, To *uint64
}

// Recent are messages of a rank, in order and without a hole.
type Recent struct {
	// First and Last are the oldest and the newest that the server keeps; nil when
	// there is none.
	First *uint64 `json:"first"`
	Last  *uint64 `json:"last"`
	// Messages are those of the range, the first of them when they are too many for
	// one answer. Next is then the number to go on with, else nil.
	Messages []RecentMessage `json:"messages"`
	Next     *uint64         `json:"next"`
}

// RecentMessage is a message that an engine has published.
type RecentMessage struct {
	// Seq is its number in the engine's stream, Topic its topic.
	Seq   uint64 `json:"seq"`
	Topic string `json:"topic"`
	// Time is when the engine sent it, in seconds since 1970 by the engine's clock.
	Time float64 `json:"time"`
	// Rank is the data-parallel rank that it names, nil for none.
	Rank *int `json:"data_parallel_rank"`
	// Events are its events as PushEvents takes them in Event.Raw, without the
	// Skipped ones that could not be understood.
	Events  []json.RawMessage `json:"events"`
	Skipped int               `json:"skipped"`
	// Malformed says why nothing of it could be read; "" when it could.
	Malformed string `json:"malformed"`
}

// RecentEvents returns recent messages of a rank that the server reads. A rank that it does
// not read is an *Error with the code "rank_not_read". A range that begins beyond the newest
// message has "range_too_new", and one that begins before the oldest kept one
// "range_too_old". Messages have the tokens of prompts, so the server gives them on its
// admin listener when it has one.
func (c *Client) RecentEvents(ctx context.Context, r RecentRequest) (*Recent, error) {
	q := url.Values{}
	for name, v := range map[string]*uint64{"from": r.From, "to": r.To} {
		if v != nil {
			q.Set(name, strconv.FormatUint(*v, 10))
		}
	}
	return ask[Recent](ctx, c, http.MethodGet, rankPath(r.Pod, r.Rank, "events", q), nil)
}

// Held is a page of the blocks that the index holds of a rank.
type Held struct {
	// Generation is the rank's life, 0 for none. All messages of the engine before Seq
	// are in the page; of later ones some may be.
	Generation uint64 `json:"generation"`
	Seq        uint64 `json:"seq"`
	// BlockKeys are the keys by tier, 16 hex digits each, in no order. One may come in
	// two pages.
	BlockKeys map[string][]string `json:"block_keys"`
	// Next is the cursor of the next page, "" after the last.
	Next string `json:"next"`
}

// HeldBlocks returns a page of what the index holds of a rank, whichever replica reads its events. The
// first page has the cursor ""; limit is how many blocks of the index, of whatever rank, it
// looks at, 0 for the server's choice. All pages, and then the messages from the first page's Seq on, are the
// whole, unless the generation has changed.
func (c *Client) HeldBlocks(ctx context.Context, pod string, rank int, cursor string, limit int) (*Held, error) {
	q := url.Values{}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return ask[Held](ctx, c, http.MethodGet, rankPath(pod, rank, "blocks", q), nil)
}

func rankPath(pod string, rank int, what string, q url.Values) string {
	return withQuery("/v1/ingest/"+url.PathEscape(pod)+"/"+strconv.Itoa(rank)+"/"+what, q)
}
