package main

// The record batch, written and read as docs/format.md has it.

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Record is one record; nil is null, which is not the same as empty.
type Record struct {
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"` // ms UTC
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
}

// Header of a record; a name may occur several times.
type Header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

// Producer says who writes, and which of its records for the partition a batch begins with.
type Producer struct {
	ID           int64
	Epoch        int16
	BaseSequence int32
}

// Partition is what a batch is sealed for.
type Partition struct {
	TopicID [16]byte
	Number  uint32
}

const (
	headerBytes = 96
	recordsMax  = 100_000
)

// Attributes of a batch.
const (
	codecMask          = 0x7
	control            = 1 << 4
	offsetDeltasThere  = 1 << 8
	timestampsThere    = 1 << 9
	keysThere          = 1 << 10
	valuesThere        = 1 << 11
	headersThere       = 1 << 12
	keysEmpty          = 1 << 13
	valuesEmpty        = 1 << 14
	transactional      = 1 << 3
	attributesKnown    = codecMask | transactional | control | 1<<5 | 0x7f00
	appendTimeIsRecord = 1 // Of the broker's attributes.
)

// Flags of a column.
const (
	someNull             = 1
	someHeaderValuesNull = 2
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

// Seal returns a batch as a producer sends it.
func Seal(partition Partition, records []Record, codec Codec, producer Producer) ([]byte, error) {
	body, attributes := writeBody(records)
	stored, err := codec.compress(body)
	if err != nil {
		return nil, err
	}
	if len(stored) < len(body) {
		attributes |= uint16(codec)
	} else {
		stored = body
	}
	latest := records[0].Timestamp
	for _, record := range records {
		latest = max(latest, record.Timestamp)
	}
	batch := make([]byte, headerBytes, headerBytes+len(stored))
	copy(batch, "MRB\x01")
	le.PutUint32(batch[4:], uint32(len(stored)))
	le.PutUint32(batch[8:], uint32(len(body)))
	le.PutUint32(batch[12:], uint32(len(records)))
	le.PutUint32(batch[16:], uint32(len(records)-1))
	le.PutUint16(batch[20:], attributes)
	le.PutUint16(batch[22:], uint16(producer.Epoch))
	le.PutUint64(batch[24:], uint64(producer.ID))
	le.PutUint32(batch[32:], uint32(producer.BaseSequence))
	le.PutUint64(batch[40:], uint64(records[0].Timestamp))
	le.PutUint64(batch[48:], uint64(latest))
	le.PutUint64(batch[56:], ^uint64(0)) // delete_horizon: -1
	le.PutUint32(batch[64:], producerCRC(partition, batch, stored))
	le.PutUint32(batch[68:], ^uint32(0)) // leader_epoch: -1
	le.PutUint64(batch[80:], ^uint64(0)) // append_timestamp: -1
	le.PutUint32(batch[92:], crc32.Checksum(batch[:92], castagnoli))
	return append(batch, stored...), nil
}

// BatchLength returns how long the batch is that data begins with.
func BatchLength(data []byte) (int, error) {
	if len(data) < headerBytes {
		return 0, fmt.Errorf("%d bytes are less than a batch's header", len(data))
	}
	length := headerBytes + int(le.Uint32(data[4:]))
	if length > len(data) {
		return 0, fmt.Errorf("a batch of %d bytes was cut to %d", length, len(data))
	}
	return length, nil
}

// Open verifies a batch that a broker sent, and returns its records and the offset after them.
func Open(partition Partition, batch []byte) ([]Record, int64, error) {
	if string(batch[:4]) != "MRB\x01" {
		return nil, 0, fmt.Errorf("%q is no batch of version 1", batch[:4])
	}
	if crc := crc32.Checksum(batch[:92], castagnoli); crc != le.Uint32(batch[92:]) {
		return nil, 0, fmt.Errorf("the broker's checksum is %08x, not %08x", le.Uint32(batch[92:]), crc)
	}
	if crc := producerCRC(partition, batch, batch[headerBytes:]); crc != le.Uint32(batch[64:]) {
		return nil, 0, fmt.Errorf("the producer's checksum is %08x, not %08x", le.Uint32(batch[64:]), crc)
	}
	attributes, count := le.Uint16(batch[20:]), int(le.Uint32(batch[12:]))
	base := int64(le.Uint64(batch[72:]))
	next := base + int64(le.Uint32(batch[16:])) + 1
	if attributes&^attributesKnown != 0 || count > recordsMax {
		return nil, 0, fmt.Errorf("attributes %#x, %d records: not of this version", attributes, count)
	}
	body, err := Codec(attributes&codecMask).inflate(batch[headerBytes:], int(le.Uint32(batch[8:])))
	if err != nil {
		return nil, 0, err
	}
	records := make([]Record, count)
	for i := range records {
		records[i] = Record{Offset: base + int64(i), Timestamp: int64(le.Uint64(batch[40:]))}
		if attributes&keysEmpty != 0 {
			records[i].Key = []byte{}
		}
		if attributes&valuesEmpty != 0 {
			records[i].Value = []byte{}
		}
	}
	if err := readBody(body, attributes, base, records); err != nil {
		return nil, 0, err
	}
	if le.Uint16(batch[88:])&appendTimeIsRecord != 0 {
		for i := range records {
			records[i].Timestamp = int64(le.Uint64(batch[80:]))
		}
	}
	if attributes&control != 0 {
		records = nil // Markers are never shown to users.
	}
	return records, next, nil
}

func producerCRC(partition Partition, header, body []byte) uint32 {
	crc := crc32.Update(0, castagnoli, partition.TopicID[:])
	crc = crc32.Update(crc, castagnoli, le.AppendUint32(nil, partition.Number))
	crc = crc32.Update(crc, castagnoli, header[:64])
	return crc32.Update(crc, castagnoli, body)
}
