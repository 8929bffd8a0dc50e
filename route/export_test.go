package route

import "time"

func init() { pictureWait, predictWait, sessionWait = time.Minute, time.Minute, time.Minute }

// PictureWait is how long a decision waits for a picture of the loads.
func PictureWait() time.Duration { return pictureWait }
