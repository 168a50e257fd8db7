package main

// What only DRPC has: the ends of calls, and several of them on a connection. Commands of `client`.

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	pb "millrace.dev/proto/v1"
)

// outcome is how a call ended.
type outcome struct {
	Call     string `json:"call"`
	Status   string `json:"status"` // Of gRPC.
	Message  string `json:"message"`
	IsClosed bool   `json:"is_closed"` // The connection is.
}

func (calls *Calls) outcome(call string, err error) outcome {
	said := outcome{Call: call, Status: codeOf(err).String()}
	if errors.Is(err, context.Canceled) {
		said.Status = "Canceled"
	}
	if err != nil {
		said.Message = err.Error()
	}
	select {
	case <-calls.Closed():
		said.IsClosed = true
	default:
	}
	return said
}

// probeCalls makes calls of each kind one after the other on a connection; those that are refused
// leave it as it was.
func probeCalls(ctx context.Context, address, clientName string, said *json.Encoder) error {
	calls, err := dialDRPC(ctx, address, true)
	if err != nil {
		return err
	}
	defer calls.Close()
	known, stranger := named(ctx, clientName), named(ctx, "a name with spaces")
	hello := func(ctx context.Context) error {
		_, err := calls.Hello(ctx, &pb.HelloRequest{})
		return err
	}
	steps := []struct {
		name string
		call func() error
	}{
		{"hello", func() error { return hello(known) }},
		{"a refused call", func() error { return hello(stranger) }},
		{"a refused stream", func() error {
			stream, err := calls.Produce(stranger)
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}},
		{"a method of brokers", func() error {
			_, err := pb.NewDRPCReplicaClient(calls.Conn).DescribeLags(known, &pb.DescribeLagsRequest{})
			return err
		}},
		{"a stream without a message", func() error {
			stream, err := calls.Produce(known)
			if err == nil {
				err = stream.CloseSend()
			}
			if err == nil {
				_, err = stream.Recv()
			}
			if err == io.EOF {
				err = nil
			}
			return err
		}},
		{"a stream that is closed", func() error {
			stream, err := calls.Fetch(known)
			if err == nil {
				err = stream.Close()
			}
			return err
		}},
		{"hello again", func() error { return hello(known) }},
	}
	for _, step := range steps {
		if err := said.Encode(calls.outcome(step.name, step.call())); err != nil {
			return err
		}
	}
	return nil
}

// probeGiveUp gives up a stream that waits, and makes another call on the same connection.
func probeGiveUp(ctx context.Context, address, clientName string, isSoft bool, said *json.Encoder) error {
	calls, err := dialDRPC(ctx, address, isSoft)
	if err != nil {
		return err
	}
	defer calls.Close()
	ctx = named(ctx, clientName)
	giving, giveUp := context.WithCancel(ctx)
	defer giveUp()
	stream, err := calls.Fetch(giving)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.FetchRequest{CreditBytes: 1}); err != nil {
		return err
	}
	time.AfterFunc(200*time.Millisecond, giveUp)
	_, err = stream.Recv()
	if !isSoft {
		<-calls.Closed()
	}
	if err := said.Encode(calls.outcome("given up", err)); err != nil {
		return err
	}
	_, err = calls.Hello(ctx, &pb.HelloRequest{})
	return said.Encode(calls.outcome("hello", err))
}

// probeWait makes calls that each wait, on a connection; it says what each answered, and ends when
// the server closes the connection, if it does so soon.
func probeWait(
	ctx context.Context, address, clientName string, wait time.Duration, times int, said *json.Encoder,
) error {
	calls, err := dialDRPC(ctx, address, true)
	if err != nil {
		return err
	}
	defer calls.Close()
	ctx = named(ctx, clientName)
	for range times {
		response, err := calls.ListOffsets(ctx, &pb.ListOffsetsRequest{MaxWaitMs: uint32(wait.Milliseconds())})
		if err == nil {
			err = said.Encode(map[string]int64{"offset": response.Offsets[0].Offset})
		}
		if err != nil {
			return err
		}
		time.Sleep(wait)
	}
	select {
	case <-calls.Closed():
		return said.Encode(map[string]bool{"is_closed": true})
	case <-time.After(10 * wait):
		return said.Encode(map[string]bool{"is_closed": false})
	}
}

// pipeline sends requests without waiting for answers, and returns where their records are, in the
// order of the requests.
func (writer *Writer) pipeline(ctx context.Context, records []Record, said *json.Encoder) error {
	leader := writer.topic.Partitions[0].Leader
	stream, err := writer.stream(ctx, leader.Address)
	if err != nil {
		return err
	}
	for i, record := range records {
		producer := writer.producer
		producer.BaseSequence = int32(i)
		batch, err := Seal(Partition{writer.topic.ID, 0}, []Record{record}, writer.codec, producer)
		if err != nil {
			return err
		}
		// The leader knows a producer's last five batches, so no more are under way.
		if i >= 5 {
			if err := writer.sayAnswers(stream, said); err != nil {
				return err
			}
		}
		writer.requests++
		if err := stream.Send(writer.request(0, leader, batch, i > 0)); err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if err := writer.sayAnswers(stream, said); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (writer *Writer) sayAnswers(stream ProduceStream, said *json.Encoder) error {
	response, err := stream.Recv()
	if err != nil {
		return err
	}
	for _, answer := range response.Answers {
		if err := refused(answer.Error); err != nil {
			return err
		}
		if err := refused(answer.Results[0].Error); err != nil {
			return err
		}
		if err := said.Encode(map[string]any{
			"request": answer.CorrelationId, "base_offset": answer.Results[0].BaseOffset,
		}); err != nil {
			return err
		}
	}
	return nil
}
