// A server by Go's own DRPC library, for the tests of our client. What it answers follows from the
// request alone.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"storj.io/drpc/drpcerr"
	"storj.io/drpc/drpcmanager"
	"storj.io/drpc/drpcmetadata"
	"storj.io/drpc/drpcmux"
	"storj.io/drpc/drpcserver"
	"storj.io/drpc/drpcstream"
	"storj.io/drpc/drpcwire"

	pb "millrace.dev/proto/v1"
)

const (
	messageBytesMax = 64 << 20
	frameBytesMax   = 64 << 10
)

func failed(code codes.Code, text string) error {
	return drpcerr.WithCode(fmt.Errorf("%s", text), uint64(code))
}

type cluster struct {
	pb.DRPCClusterUnimplementedServer
}

// Hello says who called; the one cluster that it knows is "go".
func (*cluster) Hello(ctx context.Context, request *pb.HelloRequest) (*pb.HelloResponse, error) {
	if request.ClusterId != "" && request.ClusterId != "go" {
		return nil, failed(codes.FailedPrecondition, "this is go, not "+request.ClusterId)
	}
	caller, _ := drpcmetadata.Get(ctx)
	return &pb.HelloResponse{
		ClusterId:       "go",
		BrokerName:      caller["millrace-client-id"],
		SoftwareVersion: caller["user-agent"],
	}, nil
}

type produce struct {
	pb.DRPCProduceUnimplementedServer
}

// Produce answers each request with the number of its bytes. With the time 1 it ends the call, with
// 2 it fails.
func (*produce) Produce(stream pb.DRPCProduce_ProduceStream) error {
	for {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		switch request.Header.RequestTimeoutMs {
		case 1:
			return nil
		case 2:
			return failed(codes.ResourceExhausted, "there is no room")
		}
		if err := stream.Send(&pb.ProduceResponse{Answers: []*pb.ProduceAnswer{{
			CorrelationId: request.Header.CorrelationId,
			Results:       []*pb.ProduceResult{{BaseOffset: int64(len(request.Batches))}},
		}}}); err != nil {
			return err
		}
	}
}

type fetch struct {
	pb.DRPCFetchUnimplementedServer
}

// Fetch answers each request with as many bytes as it grants; each is its index modulo 251.
func (*fetch) Fetch(stream pb.DRPCFetch_FetchStream) error {
	for {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		batches := make([]byte, request.CreditBytes)
		for i := range batches {
			batches[i] = byte(i % 251)
		}
		if err := stream.Send(&pb.FetchResponse{Batches: batches}); err != nil {
			return err
		}
	}
}

// ListOffsets answers after the time that it may wait.
func (*fetch) ListOffsets(
	ctx context.Context, request *pb.ListOffsetsRequest,
) (*pb.ListOffsetsResponse, error) {
	select {
	case <-time.After(time.Duration(request.MaxWaitMs) * time.Millisecond):
		return &pb.ListOffsetsResponse{
			Offsets: []*pb.ListedOffset{{Offset: int64(request.MaxWaitMs)}},
		}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func run() error {
	mux := drpcmux.New()
	for _, err := range []error{
		pb.DRPCRegisterCluster(mux, &cluster{}),
		pb.DRPCRegisterProduce(mux, &produce{}),
		pb.DRPCRegisterFetch(mux, &fetch{}),
	} {
		if err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{
		"address": listener.Addr().String(),
	}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { // Until whoever started it is gone.
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	server := drpcserver.NewWithOptions(mux, drpcserver.Options{
		Manager: drpcmanager.Options{
			Reader: drpcwire.ReaderOptions{MaximumBufferSize: messageBytesMax},
			Stream: drpcstream.Options{SplitSize: frameBytesMax},
		},
		Log: func(err error) { fmt.Fprintln(os.Stderr, err) },
	})
	return server.Serve(ctx, listener)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
