package redis

func (x *Index) sweepLoop() { <-x.life.Done() }
