package server

import (
	"net/http"

	"github.com/kvatlas/kvatlas/server/refusal"
	"github.com/kvatlas/kvatlas/store"
)

// getRouting is GET /v1/models/{model}/routing.
func (c *call) getRouting() error {
	model, err := c.routedModel()
	if err != nil {
		return err
	}
	s, err := c.s.cfg.Router.Settings(c.ctx, model)
	if err != nil {
		return err
	}
	return c.replyJSON(http.StatusOK, s)
}

// putRouting is PUT /v1/models/{model}/routing.
func (c *call) putRouting() error {
	model, err := c.routedModel()
	if err != nil {
		return err
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	s, err := c.s.cfg.Router.PutSettings(c.ctx, model, body)
	if err != nil {
		return err
	}
	return c.replyJSON(http.StatusOK, s)
}

func (c *call) routedModel() (string, error) {
	if c.s.cfg.Router == nil {
		return "", errNoRouter
	}
	model, err := c.pathText("model")
	if err != nil {
		return "", err
	}
	info := store.ModelInfo{Name: model, BlockSize: 1, Scheme: store.SchemeNative}
	if err := info.Validate(); err != nil {
		return "", refusal.Invalid("model", "%v", err)
	}
	c.model = c.s.meaning(c.ctx, model).Model
	return c.model, nil
}
