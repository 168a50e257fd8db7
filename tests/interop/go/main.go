// A client for the tests: it shows that docs/protocol.md, docs/format.md and the .proto files are
// enough to make one.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

const usage = `client [-drpc] [-bootstrap ADDRESS] [-cluster ID] [...] COMMAND

  hello             say which cluster it is
  create            create -topic with -partitions
  write             write records of standard input, one JSON object each, to -topic with -codec,
                    -batch of them at a time, each batch -times, as when answers are lost; say
                    where they are
  read              write all records of -topic to standard output, with -credit bytes under way
  pipeline          write each record in a request of its own, several of them under way
  open TOPIC PART   open the batch on standard input, of a topic id in hex and a partition

  with -drpc, on one connection:
  calls             make calls of each kind one after the other
  give-up           give a stream up, -soft or by closing the connection, and make another call
  wait              make -times calls that wait for -wait, and as long between them; then wait for
                    the end of the connection, for 10 times as long

With -drpc all calls go by DRPC, and ADDRESS is of a DRPC listener. A record is {"timestamp", "key", "value", "headers": [{"name", "value"}]}, bytes in Base64. A broker's
refusal goes to standard output as {"error"}, a call that failed as {"failed"}, and the exit code is 1.
`

func main() {
	bootstrap := flag.String("bootstrap", "localhost:7092", "")
	clusterID := flag.String("cluster", "", "")
	isDRPC := flag.Bool("drpc", false, "")
	clientName := flag.String("client-id", "interop", "")
	isSoft := flag.Bool("soft", false, "")
	wait := flag.Duration("wait", 500*time.Millisecond, "")
	topic := flag.String("topic", "", "")
	partitions := flag.Uint("partitions", 1, "")
	codec := flag.String("codec", "none", "")
	batch := flag.Int("batch", 1000, "")
	times := flag.Int("times", 1, "")
	credit := flag.Uint64("credit", 1<<20, "")
	timeout := flag.Duration("timeout", time.Minute, "")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	cluster := NewCluster(*bootstrap, *clusterID, *isDRPC, *clientName)
	out := bufio.NewWriter(os.Stdout)
	said := json.NewEncoder(out)

	var err error
	switch flag.Arg(0) {
	case "hello":
		if _, err = cluster.Connect(ctx, *bootstrap); err == nil {
			err = said.Encode(map[string]string{"cluster_id": cluster.id})
		}
	case "create":
		err = cluster.CreateTopic(ctx, *topic, uint32(*partitions))
	case "write":
		err = write(ctx, cluster, *topic, *codec, *batch, *times, said)
	case "read":
		var records []PartitionRecord
		if records, err = ReadAll(ctx, cluster, *topic, *credit); err == nil {
			err = encodeAll(said, records)
		}
	case "pipeline":
		err = pipeline(ctx, cluster, *topic, said)
	case "calls":
		err = probeCalls(ctx, *bootstrap, *clientName, said)
	case "give-up":
		err = probeGiveUp(ctx, *bootstrap, *clientName, *isSoft, said)
	case "wait":
		err = probeWait(ctx, *bootstrap, *clientName, *wait, *times, said)
	case "open":
		err = open(flag.Arg(1), flag.Arg(2), said)
	default:
		flag.Usage()
		os.Exit(2)
	}
	var refusal Refusal
	if errors.As(err, &refusal) {
		said.Encode(map[string]any{"error": map[string]any{
			"code":      refusal.Said.Code.String(),
			"message":   refusal.Said.Message,
			"retriable": refusal.Said.Retriable,
			"appended":  refusal.Said.Appended.String(),
		}})
	}
	if err != nil && refusal.Said == nil {
		said.Encode(map[string]any{"failed": map[string]any{
			"status": codeOf(err).String(), "message": err.Error(),
		}})
	}
	out.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(
	ctx context.Context, cluster *Cluster, topic, codecName string, batch, times int,
	said *json.Encoder,
) error {
	codec, err := CodecNamed(codecName)
	if err != nil {
		return err
	}
	records, err := readRecords()
	if err != nil {
		return err
	}
	writer, err := OpenWriter(ctx, cluster, topic, codec)
	if err == nil {
		writer.times = times
	}
	for ; err == nil && len(records) > 0; records = records[min(batch, len(records)):] {
		var written []Written
		if written, err = writer.Write(ctx, records[:min(batch, len(records))]); err == nil {
			err = encodeAll(said, written)
		}
	}
	return err
}

func pipeline(ctx context.Context, cluster *Cluster, topic string, said *json.Encoder) error {
	records, err := readRecords()
	if err != nil {
		return err
	}
	writer, err := OpenWriter(ctx, cluster, topic, 0)
	if err != nil {
		return err
	}
	return writer.pipeline(ctx, records, said)
}

// readRecords reads records from standard input.
func readRecords() ([]Record, error) {
	var records []Record
	for in := json.NewDecoder(os.Stdin); ; {
		var record Record
		if err := in.Decode(&record); err == io.EOF {
			return records, nil
		} else if err != nil {
			return nil, err
		}
		records = append(records, record)
	}
}

func open(topicID, partition string, said *json.Encoder) error {
	var of Partition
	if _, err := hex.Decode(of.TopicID[:], []byte(topicID)); err != nil {
		return err
	}
	if _, err := fmt.Sscan(partition, &of.Number); err != nil {
		return err
	}
	batch, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if _, err := BatchLength(batch); err != nil {
		return err
	}
	records, _, err := Open(of, batch)
	if err != nil {
		return err
	}
	return encodeAll(said, records)
}

func encodeAll[T any](said *json.Encoder, all []T) error {
	for _, each := range all {
		if err := said.Encode(each); err != nil {
			return err
		}
	}
	return nil
}
