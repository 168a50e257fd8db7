package main

// Connections to brokers, the handshake, and who leads what.

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "millrace.dev/proto/v1"
)

const (
	// Go's default of 4 MiB is less than a fetch may answer with, and metadata has no bound.
	receivedBytesMax = 64 << 20
	none             = -1
)

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

// refusedWhole returns the refusal of a whole call: its text is the status's, all else is in trailing
// metadata. What failed for another reason is returned as it is.
func refusedWhole(err error, trailer metadata.MD) error {
	for _, found := range trailer.Get("millrace-error-bin") {
		said := &pb.Error{}
		if proto.Unmarshal([]byte(found), said) == nil {
			said.Message = status.Convert(err).Message()
			return Refusal{said}
		}
	}
	return err
}

func refuseWhole(
	ctx context.Context, method string, request, response any, to *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	var trailer metadata.MD
	err := invoke(ctx, method, request, response, to, append(options, grpc.Trailer(&trailer))...)
	return refusedWhole(err, trailer)
}

// Cluster finds topics and leaders, and keeps one connection to each broker.
type Cluster struct {
	bootstrap   string
	id          string // Empty: whichever it is.
	connections map[string]*grpc.ClientConn
}

// NewCluster returns a cluster that one of its brokers is known of.
func NewCluster(bootstrap, id string) *Cluster {
	return &Cluster{bootstrap, id, map[string]*grpc.ClientConn{}}
}

// clientID names the client with every call, of whichever kind.
type clientID string

func (id clientID) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"millrace-client-id": string(id)}, nil
}

func (clientID) RequireTransportSecurity() bool { return false }

// Connect returns the connection to a broker, which begins with Hello.
func (cluster *Cluster) Connect(ctx context.Context, address string) (*grpc.ClientConn, error) {
	if connection, ok := cluster.connections[address]; ok {
		return connection, nil
	}
	connection, err := grpc.NewClient(
		"passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(clientID("interop")),
		grpc.WithUserAgent("millrace-go-test"),
		grpc.WithUnaryInterceptor(refuseWhole),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(receivedBytesMax)),
	)
	if err != nil {
		return nil, err
	}
	if _, err := cluster.hello(ctx, connection); err != nil {
		connection.Close()
		return nil, err
	}
	cluster.connections[address] = connection
	return connection, nil
}

func (cluster *Cluster) hello(ctx context.Context, to *grpc.ClientConn) (*pb.HelloResponse, error) {
	response, err := pb.NewClusterClient(to).Hello(ctx, &pb.HelloRequest{
		ClusterId: cluster.id,
		Features:  []*pb.Feature{{Name: "client-protocol", MinLevel: 1, MaxLevel: 1}},
	})
	if err != nil {
		return nil, err
	}
	if err := refused(response.Error); err != nil {
		return nil, err
	}
	cluster.id = response.ClusterId // From now on no other will do.
	return response, nil
}

// CreateTopic creates a topic.
func (cluster *Cluster) CreateTopic(ctx context.Context, name string, partitions uint32) error {
	connection, err := cluster.Connect(ctx, cluster.bootstrap)
	if err != nil {
		return err
	}
	response, err := pb.NewClusterClient(connection).CreateTopics(ctx, &pb.CreateTopicsRequest{
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
	connection, err := cluster.Connect(ctx, cluster.bootstrap)
	if err != nil {
		return nil, err
	}
	response, err := pb.NewClusterClient(connection).GetMetadata(
		ctx, &pb.GetMetadataRequest{Topics: []string{name}})
	if err != nil {
		return nil, err
	}
	found := response.Topics[0]
	if err := refused(found.Error); err != nil {
		return nil, err
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
