package main

// Idempotent writing with acks=all, and what is sent again when it was not acknowledged.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/grpc/codes"

	pb "millrace.dev/proto/v1"
)

const acksAll = -1

// Writer writes to one topic.
type Writer struct {
	cluster  *Cluster
	topic    *Topic
	name     string
	codec    Codec
	producer Producer
	next     map[uint32]int32 // The sequence that each partition's next batch begins with.
	streams  map[string]ProduceStream
	requests uint64
	times    int // How often each batch is sent; once is enough.
}

// OpenWriter gets a producer id, whose sequences begin with 0 in each partition.
func OpenWriter(ctx context.Context, cluster *Cluster, name string, codec Codec) (*Writer, error) {
	topic, err := cluster.Topic(ctx, name)
	if err != nil {
		return nil, err
	}
	broker, err := cluster.Connect(ctx, cluster.bootstrap)
	if err != nil {
		return nil, err
	}
	given, err := broker.InitProducerId(ctx, &pb.InitProducerIdRequest{})
	if err != nil {
		return nil, err
	}
	if err := refused(given.Error); err != nil {
		return nil, err
	}
	return &Writer{
		cluster:  cluster,
		topic:    topic,
		name:     name,
		codec:    codec,
		producer: Producer{ID: given.ProducerId, Epoch: int16(given.ProducerEpoch)},
		next:     map[uint32]int32{},
		streams:  map[string]ProduceStream{},
		times:    1,
	}, nil
}

// Written says where a batch is.
type Written struct {
	Partition  uint32 `json:"partition"`
	BaseOffset int64  `json:"base_offset"`
	Count      int    `json:"count"`
}

// Write parts records by their keys, and returns when all in-sync replicas have them.
func (writer *Writer) Write(ctx context.Context, records []Record) ([]Written, error) {
	count := uint32(len(writer.topic.Partitions))
	parts := make([][]Record, count)
	for _, record := range records {
		number := uint32(0) // A record without a key may go anywhere.
		if record.Key != nil {
			number = KeyedPartition(record.Key, count)
		}
		parts[number] = append(parts[number], record)
	}
	written := []Written{}
	for number, part := range parts {
		if len(part) == 0 {
			continue
		}
		offset, err := writer.WriteBatch(ctx, uint32(number), part)
		if err != nil {
			return written, err
		}
		written = append(written, Written{uint32(number), offset, len(part)})
	}
	return written, nil
}

// WriteBatch appends one batch, and returns the offset of its first record. Until it is acknowledged
// or refused for good it is sent again as it is, with the same sequence: so it is never there twice.
func (writer *Writer) WriteBatch(ctx context.Context, number uint32, records []Record) (int64, error) {
	producer := writer.producer
	producer.BaseSequence = writer.next[number]
	batch, err := Seal(Partition{writer.topic.ID, number}, records, writer.codec, producer)
	if err != nil {
		return 0, err
	}
	offset, err := writer.deliver(ctx, number, batch)
	for i := 1; i < writer.times && err == nil; i++ {
		var again int64
		if again, err = writer.deliver(ctx, number, batch); err == nil && again != offset {
			err = fmt.Errorf("a batch at offset %d, sent again, is at %d", offset, again)
		}
	}
	if err == nil {
		// Sequences count records, and go on from 2^31 - 1 with 0.
		writer.next[number] = int32((int64(producer.BaseSequence) + int64(len(records))) & math.MaxInt32)
	}
	return offset, err
}

func (writer *Writer) deliver(ctx context.Context, number uint32, batch []byte) (int64, error) {
	for {
		offset, err := writer.send(ctx, number, batch)
		if err == nil || !mayBeSentAgain(err) || ctx.Err() != nil {
			return offset, err
		}
		time.Sleep(100 * time.Millisecond)
		if topic, err := writer.cluster.Topic(ctx, writer.name); err == nil {
			writer.topic = topic
		}
	}
}

func (writer *Writer) send(ctx context.Context, number uint32, batch []byte) (int64, error) {
	leader := writer.topic.Partitions[number].Leader
	stream, err := writer.stream(ctx, leader.Address)
	if err != nil {
		return 0, err
	}
	writer.requests++
	err = stream.Send(writer.request(number, leader, batch, false))
	var response *pb.ProduceResponse
	if err == nil || err == io.EOF { // Of EOF, Recv says why.
		response, err = stream.Recv()
	}
	if err != nil {
		delete(writer.streams, leader.Address)
		return 0, err
	}
	answer := response.Answers[0] // One request is under way at a time.
	if err := refused(answer.Error); err != nil {
		return 0, err
	}
	return answer.Results[0].BaseOffset, refused(answer.Results[0].Error)
}

// request returns a request for a batch.
func (writer *Writer) request(
	number uint32, leader *pb.PartitionLeader, batch []byte, isSuccessor bool,
) *pb.ProduceRequest {
	return &pb.ProduceRequest{
		Header: &pb.ProduceHeader{
			CorrelationId:    writer.requests,
			Acks:             acksAll,
			RequestTimeoutMs: 10_000,
			Partitions: []*pb.ProducePartition{{
				TopicId:     writer.topic.ID[:],
				Partition:   number,
				LeaderEpoch: leader.LeaderEpoch,
				Length:      uint32(len(batch)),
				IsSuccessor: isSuccessor,
			}},
		},
		Batches: batch,
	}
}

func (writer *Writer) stream(ctx context.Context, address string) (ProduceStream, error) {
	if stream, ok := writer.streams[address]; ok {
		return stream, nil
	}
	broker, err := writer.cluster.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	stream, err := broker.Produce(ctx)
	if err == nil {
		writer.streams[address] = stream
	}
	return stream, err
}

func mayBeSentAgain(err error) bool {
	var refusal Refusal
	if errors.As(err, &refusal) {
		return refusal.Said.Retriable
	}
	return codeOf(err) == codes.Unavailable
}
