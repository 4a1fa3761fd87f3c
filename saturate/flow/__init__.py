"""The adaptive middle: rows in, results out, as many at a time as the endpoint can sustain."""
