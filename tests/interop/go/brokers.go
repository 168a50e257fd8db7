package main

// What a client asks of a broker, over either carrier: the services are the same, and so are the messages.

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"storj.io/drpc"
	"storj.io/drpc/drpcerr"

	pb "millrace.dev/proto/v1"
)

const (
	// Go's default of 4 MiB is less than a fetch may answer with, and metadata has no bound.
	receivedBytesMax = 64 << 20
	software         = "millrace-go-test"
)

// Broker answers calls.
type Broker interface {
	Hello(context.Context, *pb.HelloRequest) (*pb.HelloResponse, error)
	CreateTopics(context.Context, *pb.CreateTopicsRequest) (*pb.CreateTopicsResponse, error)
	GetMetadata(context.Context, *pb.GetMetadataRequest) (*pb.GetMetadataResponse, error)
	InitProducerId(context.Context, *pb.InitProducerIdRequest) (*pb.InitProducerIdResponse, error)
	ListOffsets(context.Context, *pb.ListOffsetsRequest) (*pb.ListOffsetsResponse, error)
	Produce(context.Context) (ProduceStream, error)
	Fetch(context.Context) (FetchStream, error)
	Close() error
}

// Stream is a call with a stream in each direction.
type Stream[Request, Response any] interface {
	Send(*Request) error
	Recv() (*Response, error)
	CloseSend() error
}

type (
	ProduceStream = Stream[pb.ProduceRequest, pb.ProduceResponse]
	FetchStream   = Stream[pb.FetchRequest, pb.FetchResponse]
)

// codeOf returns the status of a call that has failed, over either carrier.
func codeOf(err error) codes.Code {
	if code := drpcerr.Code(err); code != 0 {
		return codes.Code(code) // DRPC's errors have gRPC's numbers.
	}
	if drpc.ClosedError.Has(err) {
		return codes.Unavailable
	}
	return status.Code(err)
}

// grpcBroker is reached by gRPC: all calls share a connection.
type grpcBroker struct{ *grpc.ClientConn }

func dialGRPC(address, clientName string) (Broker, error) {
	connection, err := grpc.NewClient(
		"passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(clientID(clientName)),
		grpc.WithUserAgent(software),
		grpc.WithUnaryInterceptor(refuseWhole),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(receivedBytesMax)),
	)
	return grpcBroker{connection}, err
}

func (broker grpcBroker) Hello(ctx context.Context, request *pb.HelloRequest) (*pb.HelloResponse, error) {
	return pb.NewClusterClient(broker).Hello(ctx, request)
}

func (broker grpcBroker) CreateTopics(
	ctx context.Context, request *pb.CreateTopicsRequest,
) (*pb.CreateTopicsResponse, error) {
	return pb.NewClusterClient(broker).CreateTopics(ctx, request)
}

func (broker grpcBroker) GetMetadata(
	ctx context.Context, request *pb.GetMetadataRequest,
) (*pb.GetMetadataResponse, error) {
	return pb.NewClusterClient(broker).GetMetadata(ctx, request)
}

func (broker grpcBroker) InitProducerId(
	ctx context.Context, request *pb.InitProducerIdRequest,
) (*pb.InitProducerIdResponse, error) {
	return pb.NewProduceClient(broker).InitProducerId(ctx, request)
}

func (broker grpcBroker) ListOffsets(
	ctx context.Context, request *pb.ListOffsetsRequest,
) (*pb.ListOffsetsResponse, error) {
	return pb.NewFetchClient(broker).ListOffsets(ctx, request)
}

func (broker grpcBroker) Produce(ctx context.Context) (ProduceStream, error) {
	stream, err := pb.NewProduceClient(broker).Produce(ctx)
	return grpcStream[pb.ProduceRequest, pb.ProduceResponse]{stream}, err
}

func (broker grpcBroker) Fetch(ctx context.Context) (FetchStream, error) {
	stream, err := pb.NewFetchClient(broker).Fetch(ctx)
	return grpcStream[pb.FetchRequest, pb.FetchResponse]{stream}, err
}

// clientID names the client with every call, of whichever kind.
type clientID string

func (id clientID) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"millrace-client-id": string(id)}, nil
}

func (clientID) RequireTransportSecurity() bool { return false }

// grpcStream is a stream whose refusal as a whole is read from its trailing metadata.
type grpcStream[Request, Response any] struct {
	grpc.BidiStreamingClient[Request, Response]
}

func (stream grpcStream[Request, Response]) Recv() (*Response, error) {
	response, err := stream.BidiStreamingClient.Recv()
	if err != nil {
		err = refusedWhole(err, stream.Trailer())
	}
	return response, err
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
