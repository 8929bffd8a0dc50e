package coordinator

import (
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/kvatlas/kvatlas/store"
)

// member is what an instance reports itself.
type member struct {
	ID         string            `json:"instance_id"`
	IP         string            `json:"ip"`
	Port       int               `json:"http_port"`
	Registered float64           `json:"registration_time"`
	Metadata   map[string]string `json:"metadata"`
	P2P        string            `json:"p2p_advertised_url"`
	MQPort     int               `json:"mq_port"`
}

func (m *member) clone() member {
	c := *m
	c.Metadata = maps.Clone(m.Metadata)
	return c
}

// maxLabel is the longest name and value of metadata in bytes, as of a pod's labels.
const maxLabel = 512

// read reads the body of POST /instances.
func (m *member) read(v gjson.Result) error {
	return readObject(v, func(name string, v gjson.Result) error {
		switch name {
		case "instance_id":
			return readText(v, &m.ID)
		case "ip":
			return readText(v, &m.IP)
		case "http_port":
			return readNumber(v, &m.Port, 65535)
		case "p2p_advertised_url":
			return readText(v, &m.P2P)
		case "mq_port":
			return readNumber(v, &m.MQPort, 65535)
		case "metadata":
			m.Metadata = map[string]string{}
			return readObject(v, func(field string, v gjson.Result) error {
				var text string
				if err := readText(v, &text); err != nil {
					return err
				}
				if len(field) > maxLabel || len(text) > maxLabel || len(m.Metadata) == store.MaxLabels {
					return &fault{status: http.StatusUnprocessableEntity, why: fmt.Sprintf("is too much: metadata can have %d fields, their names and values %d bytes each", store.MaxLabels, maxLabel)}
				}
				m.Metadata[strings.Clone(field)] = text
				return nil
			})
		}
		return nil
	})
}
