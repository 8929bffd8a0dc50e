package route

import "time"

func init() { pictureWait, predictWait, sessionWait = time.Minute, time.Minute, time.Minute }
