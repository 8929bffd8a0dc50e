package coordinator

import (
	"fmt"
	"maps"
	"net/http"

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
func (m *member) read(t *text) error {
	return t.object(func(name string) error {
		switch name {
		case "instance_id":
			return set(&m.ID, t.string)
		case "ip":
			return set(&m.IP, t.string)
		case "http_port":
			return number(t, &m.Port, 65535)
		case "p2p_advertised_url":
			return set(&m.P2P, t.string)
		case "mq_port":
			return number(t, &m.MQPort, 65535)
		case "metadata":
			m.Metadata = map[string]string{}
			return t.object(func(field string) error {
				v, err := t.string()
				if err != nil {
					return err
				}
				if len(field) > maxLabel || len(v) > maxLabel || len(m.Metadata) == store.MaxLabels {
					return &fault{status: http.StatusUnprocessableEntity, why: fmt.Sprintf("is too much: metadata can have %d fields, their names and values %d bytes each", store.MaxLabels, maxLabel)}
				}
				m.Metadata[field] = v
				return nil
			})
		}
		return nil
	})
}
