package main

// Connections to brokers, the handshake, and who leads what.

import (
	"context"
	"fmt"

	pb "millrace.dev/proto/v1"
)

const none = -1

// Refusal is an error that a broker has answered with.
type Refusal struct{ Said *pb.Error }

func (refusal Refusal) Error() string {
	return fmt.Sprintf("%s: %s", refusal.Said.Code, refusal.Said.Message)
}

// refused returns the error of an answer; nil when there is none.
func refused(err *pb.Error) error {
	if err == nil {
		return nil
	}
	return Refusal{err}
}

// Cluster finds topics and leaders, and knows each broker that it has talked to.
type Cluster struct {
	bootstrap  string
	id         string // Empty: whichever it is.
	isDRPC     bool   // Else by gRPC; `bootstrap` is an address of the same.
	clientName string
	brokers    map[string]Broker
}

// NewCluster returns a cluster that one of its brokers is known of.
func NewCluster(bootstrap, id string, isDRPC bool, clientName string) *Cluster {
	return &Cluster{bootstrap, id, isDRPC, clientName, map[string]Broker{}}
}

// Connect returns the broker at an address; its connection begins with Hello.
func (cluster *Cluster) Connect(ctx context.Context, address string) (Broker, error) {
	if broker, ok := cluster.brokers[address]; ok {
		return broker, nil
	}
	var broker Broker
	var err error
	if cluster.isDRPC {
		broker, err = dialDRPCBroker(ctx, address, cluster.clientName)
	} else {
		broker, err = dialGRPC(address, cluster.clientName)
	}
	if err != nil {
		return nil, err
	}
	if err := cluster.hello(ctx, broker); err != nil {
		broker.Close()
		return nil, err
	}
	cluster.brokers[address] = broker
	return broker, nil
}

func (cluster *Cluster) hello(ctx context.Context, broker Broker) error {
	response, err := broker.Hello(ctx, &pb.HelloRequest{
		ClusterId: cluster.id,
		Features:  []*pb.Feature{{Name: "client-protocol", MinLevel: 1, MaxLevel: 1}},
	})
	if err != nil {
		return err
	}
	if err := refused(response.Error); err != nil {
		return err
	}
	cluster.id = response.ClusterId // From now on no other will do.
	return nil
}

// CreateTopic creates a topic.
func (cluster *Cluster) CreateTopic(ctx context.Context, name string, partitions uint32) error {
	broker, err := cluster.Connect(ctx, cluster.bootstrap)
	if err != nil {
		return err
	}
	response, err := broker.CreateTopics(ctx, &pb.CreateTopicsRequest{
		Topics: []*pb.NewTopic{{Name: name, Partitions: partitions}},
	})
	if err != nil {
		return err
	}
	return refused(response.Results[0].Error)
}

// Topic is a topic as the metadata told it last.
type Topic struct {
	ID         [16]byte
	Partitions []*pb.PartitionMetadata // By number.
}

// Topic asks for a topic.
func (cluster *Cluster) Topic(ctx context.Context, name string) (*Topic, error) {
	broker, err := cluster.Connect(ctx, cluster.bootstrap)
	if err != nil {
		return nil, err
	}
	response, err := broker.GetMetadata(
		ctx, &pb.GetMetadataRequest{Topics: []string{name}})
	if err != nil {
		return nil, err
	}
	found := response.Topics[0]
	if err := refused(found.Error); err != nil {
		return nil, err
	}
	if cluster.isDRPC {
		addresses := map[int32]string{}
		for _, each := range response.Brokers {
			addresses[each.BrokerId] = each.DrpcAddress
		}
		for _, partition := range found.Partitions {
			partition.Leader.Address = addresses[partition.Leader.BrokerId]
		}
	}
	return &Topic{[16]byte(found.TopicId), found.Partitions}, nil
}

// ByLeader returns the partitions by the addresses of those who lead them.
func (topic *Topic) ByLeader() (map[string][]uint32, error) {
	led := map[string][]uint32{}
	for _, partition := range topic.Partitions {
		if partition.Leader.BrokerId == none {
			return nil, fmt.Errorf("nobody leads partition %d", partition.Partition)
		}
		address := partition.Leader.Address
		led[address] = append(led[address], partition.Partition)
	}
	return led, nil
}
