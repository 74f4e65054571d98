"""The model of the paper: an encoder, and decoders that attend over its grid."""
