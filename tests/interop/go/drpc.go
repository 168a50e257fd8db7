package main

// A broker by DRPC: a connection carries one call at a time, so a stream has one of its own.

import (
	"context"
	"net"

	"storj.io/drpc/drpcconn"
	"storj.io/drpc/drpcmanager"
	"storj.io/drpc/drpcmetadata"
	"storj.io/drpc/drpcwire"

	pb "millrace.dev/proto/v1"
)

// Calls are all calls of one connection; the names of its methods are those of the generated stubs.
type Calls struct {
	*drpcconn.Conn
	pb.DRPCClusterClient
	pb.DRPCProduceClient
	pb.DRPCFetchClient
}

// dialDRPC opens a connection; nothing is sent yet.
func dialDRPC(ctx context.Context, address string, softCancel bool) (*Calls, error) {
	socket, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := drpcconn.NewWithOptions(socket, drpcconn.Options{Manager: drpcmanager.Options{
		Reader:     drpcwire.ReaderOptions{MaximumBufferSize: receivedBytesMax},
		SoftCancel: softCancel,
	}})
	return &Calls{
		conn,
		pb.NewDRPCClusterClient(conn),
		pb.NewDRPCProduceClient(conn),
		pb.NewDRPCFetchClient(conn),
	}, nil
}

// Close closes the connection.
func (calls *Calls) Close() error { return calls.Conn.Close() }

// named returns a context whose calls say who makes them.
func named(ctx context.Context, clientName string) context.Context {
	return drpcmetadata.AddPairs(ctx, map[string]string{
		"millrace-client-id": clientName,
		"user-agent":         software,
	})
}

// drpcBroker makes its unary calls one after the other on a connection.
type drpcBroker struct {
	address, clientName string
	unary               *Calls
	streams             []*Calls
}

func dialDRPCBroker(ctx context.Context, address, clientName string) (Broker, error) {
	unary, err := dialDRPC(ctx, address, true)
	return &drpcBroker{address: address, clientName: clientName, unary: unary}, err
}

func (broker *drpcBroker) Hello(ctx context.Context, request *pb.HelloRequest) (*pb.HelloResponse, error) {
	return broker.unary.Hello(named(ctx, broker.clientName), request)
}

func (broker *drpcBroker) CreateTopics(
	ctx context.Context, request *pb.CreateTopicsRequest,
) (*pb.CreateTopicsResponse, error) {
	return broker.unary.CreateTopics(named(ctx, broker.clientName), request)
}

func (broker *drpcBroker) GetMetadata(
	ctx context.Context, request *pb.GetMetadataRequest,
) (*pb.GetMetadataResponse, error) {
	return broker.unary.GetMetadata(named(ctx, broker.clientName), request)
}

func (broker *drpcBroker) InitProducerId(
	ctx context.Context, request *pb.InitProducerIdRequest,
) (*pb.InitProducerIdResponse, error) {
	return broker.unary.InitProducerId(named(ctx, broker.clientName), request)
}

func (broker *drpcBroker) ListOffsets(
	ctx context.Context, request *pb.ListOffsetsRequest,
) (*pb.ListOffsetsResponse, error) {
	return broker.unary.ListOffsets(named(ctx, broker.clientName), request)
}

func (broker *drpcBroker) Produce(ctx context.Context) (ProduceStream, error) {
	calls, err := broker.connect(ctx)
	if err != nil {
		return nil, err
	}
	return calls.Produce(named(ctx, broker.clientName))
}

func (broker *drpcBroker) Fetch(ctx context.Context) (FetchStream, error) {
	calls, err := broker.connect(ctx)
	if err != nil {
		return nil, err
	}
	return calls.Fetch(named(ctx, broker.clientName))
}

// connect opens a connection for a stream.
func (broker *drpcBroker) connect(ctx context.Context) (*Calls, error) {
	calls, err := dialDRPC(ctx, broker.address, true)
	if err != nil {
		return nil, err
	}
	broker.streams = append(broker.streams, calls)
	hello, err := calls.Hello(named(ctx, broker.clientName), &pb.HelloRequest{})
	if err == nil {
		err = refused(hello.Error)
	}
	return calls, err
}

// Close closes all connections.
func (broker *drpcBroker) Close() error {
	for _, calls := range broker.streams {
		calls.Close()
	}
	return broker.unary.Close()
}
