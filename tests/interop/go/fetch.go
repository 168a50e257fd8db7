package main

// Reading with credit, from the beginning to where the topic ends now.

import (
	"context"
	"fmt"
	"io"

	pb "millrace.dev/proto/v1"
)

// PartitionRecord is a record with its partition.
type PartitionRecord struct {
	Partition uint32 `json:"partition"`
	Record
}

type position struct {
	partition uint32
	next, end int64
}

// ReadAll returns every record of a topic, each partition's in their order.
func ReadAll(ctx context.Context, cluster *Cluster, name string, credit uint64) ([]PartitionRecord, error) {
	topic, err := cluster.Topic(ctx, name)
	if err != nil {
		return nil, err
	}
	byLeader, err := topic.ByLeader()
	if err != nil {
		return nil, err
	}
	records := []PartitionRecord{}
	for address, partitions := range byLeader {
		if records, err = readFrom(ctx, cluster, address, topic, partitions, credit, records); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func readFrom(
	ctx context.Context, cluster *Cluster, address string, topic *Topic, partitions []uint32,
	credit uint64, records []PartitionRecord,
) ([]PartitionRecord, error) {
	broker, err := cluster.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	positions, err := positionsOf(ctx, broker, topic, partitions)
	if err != nil {
		return nil, err
	}
	stream, err := broker.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	request := &pb.FetchRequest{
		Settings:    &pb.FetchSettings{MinBytes: 1, MaxWaitMs: 500, WindowBytes: credit},
		CreditBytes: credit,
	}
	for handle, at := range positions {
		request.Partitions = append(request.Partitions, &pb.FetchPartition{
			Handle:             handle,
			TopicId:            topic.ID[:],
			Partition:          at.partition,
			FetchOffset:        at.next,
			CurrentLeaderEpoch: topic.Partitions[at.partition].Leader.LeaderEpoch,
			LastFetchedEpoch:   none,
			EndOffset:          at.end,
		})
	}
	for len(positions) > 0 {
		if err := stream.Send(request); err != nil && err != io.EOF { // Of EOF, Recv says why.
			return nil, err
		}
		response, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if records, err = take(response, topic, positions, records); err != nil {
			return nil, err
		}
		// What has come is granted again, once it is used: the broker never sends beyond that.
		request = &pb.FetchRequest{CreditBytes: uint64(len(response.Batches))}
	}
	return records, stream.CloseSend()
}

// positionsOf returns those of the partitions that hold something, under handles of our own.
func positionsOf(
	ctx context.Context, broker Broker, topic *Topic, partitions []uint32,
) (map[uint32]*position, error) {
	request := &pb.ListOffsetsRequest{}
	for _, number := range partitions {
		about := &pb.TopicPartition{TopicId: topic.ID[:], Partition: number}
		request.Partitions = append(request.Partitions,
			&pb.ListOffsetsPartition{
				TopicPartition:     about,
				CurrentLeaderEpoch: none,
				Position:           &pb.ListOffsetsPartition_Earliest{Earliest: true},
			},
			&pb.ListOffsetsPartition{
				TopicPartition:     about,
				CurrentLeaderEpoch: none,
				Position:           &pb.ListOffsetsPartition_Latest{Latest: true},
			})
	}
	response, err := broker.ListOffsets(ctx, request)
	if err != nil {
		return nil, err
	}
	for _, found := range response.Offsets {
		if err := refused(found.Error); err != nil {
			return nil, err
		}
	}
	positions := map[uint32]*position{}
	for i, number := range partitions {
		first, end := response.Offsets[2*i].Offset, response.Offsets[2*i+1].Offset
		if first < end {
			positions[uint32(len(positions))] = &position{number, first, end}
		}
	}
	return positions, nil
}

// take adds the records that a response brings, and drops the positions that have come to their end.
func take(
	response *pb.FetchResponse, topic *Topic, positions map[uint32]*position, records []PartitionRecord,
) ([]PartitionRecord, error) {
	left := response.Batches
	for _, news := range response.Header.Partitions {
		at, ok := positions[news.Handle]
		if !ok || int(news.Length) > len(left) {
			return nil, fmt.Errorf("news of handle %d, of %d bytes", news.Handle, news.Length)
		}
		if err := refused(news.Error); err != nil {
			return nil, err
		}
		batches := left[:news.Length]
		left = left[news.Length:]
		for len(batches) > 0 {
			length, err := BatchLength(batches)
			if err != nil {
				return nil, err
			}
			opened, next, err := Open(Partition{topic.ID, at.partition}, batches[:length])
			if err != nil {
				return nil, err
			}
			for _, record := range opened {
				if record.Offset >= at.next && record.Offset < at.end {
					records = append(records, PartitionRecord{at.partition, record})
				}
			}
			at.next = max(at.next, next)
			batches = batches[length:]
		}
		if at.next >= at.end {
			delete(positions, news.Handle)
		}
	}
	return records, nil
}
