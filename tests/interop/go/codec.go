package main

// Compression of a body as a whole.

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is its number in a batch's attributes.
type Codec uint16

var codecNames = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// CodecNamed returns a codec by its name.
func CodecNamed(name string) (Codec, error) {
	for number, each := range codecNames {
		if each == name {
			return Codec(number), nil
		}
	}
	return 0, fmt.Errorf("%q is none of %v", name, codecNames)
}

func (codec Codec) compress(body []byte) ([]byte, error) {
	var stored bytes.Buffer
	var writer io.WriteCloser
	var err error
	switch codec {
	case 0:
		return body, nil
	case 2:
		return snappy.Encode(nil, body), nil // A raw block, and no frames.
	case 1:
		writer = gzip.NewWriter(&stored)
	case 3:
		writer = lz4.NewWriter(&stored)
	case 4:
		writer, err = zstd.NewWriter(&stored)
	}
	if err == nil {
		_, err = writer.Write(body)
	}
	if err == nil {
		err = writer.Close()
	}
	return stored.Bytes(), err
}

// inflate returns the body, which has to be as long as the header says: that bounds the memory.
func (codec Codec) inflate(stored []byte, length int) ([]byte, error) {
	var reader io.Reader = bytes.NewReader(stored)
	var err error
	switch codec {
	case 0:
	case 1:
		reader, err = gzip.NewReader(reader)
	case 2:
		if declared, err := snappy.DecodedLen(stored); err != nil || declared != length {
			return nil, fmt.Errorf("the body inflates to %d bytes, not %d", declared, length)
		}
		return snappy.Decode(nil, stored)
	case 3:
		reader = lz4.NewReader(reader)
	case 4:
		var decoder *zstd.Decoder
		if decoder, err = zstd.NewReader(reader); err == nil {
			defer decoder.Close()
			reader = decoder
		}
	default:
		return nil, fmt.Errorf("codec %d is not of this version", codec)
	}
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(reader, int64(length)+1))
	if err == nil && len(body) != length {
		err = fmt.Errorf("the body inflates to %d bytes, not %d", len(body), length)
	}
	return body, err
}
