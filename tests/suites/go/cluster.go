// Package kfake stands in for franz-go's fake cluster, so that the tests that were written for that
// run against a real cluster: the one whose addresses are in KGO_SEEDS.
//
// A Cluster is a proxy before it. Tests see each request and may answer it themselves, as with the
// fake. It makes the topics of a test anew, and deletes them with the groups at the end: the names
// are those of the tests. Settings of brokers cannot be given to a cluster that is there already.
package kfake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	stepTimeout  = 30 * time.Second
	pollInterval = 50 * time.Millisecond
	settled      = 2 * time.Second
)

// Opt is a setting of a Cluster.
type Opt func(*settings)

type settings struct {
	topics []seeded
}

type seeded struct {
	name       string
	partitions int32
}

// NumBrokers is ignored: the real cluster has as many as it has.
func NumBrokers(int) Opt { return func(*settings) {} }

// BrokerConfigs is ignored: the real cluster runs already.
func BrokerConfigs(map[string]string) Opt { return func(*settings) {} }

// SeedTopics has topics made.
func SeedTopics(partitions int32, topics ...string) Opt {
	return func(s *settings) {
		for _, name := range topics {
			s.topics = append(s.topics, seeded{name, partitions})
		}
	}
}

// Control sees a request. If the last answer is true, the others are what the client gets.
type Control func(kmsg.Request) (kmsg.Response, error, bool)

// Fault fails requests of some kinds that a test chooses.
type Fault struct {
	Keys []kmsg.Key
	Err  *kerr.Error
	When func(kmsg.Request) bool
}

// Cluster is a real cluster that is reached through proxies, one for each of its brokers.
type Cluster struct {
	client *kgo.Client
	admin  *kadm.Client

	mu        sync.Mutex
	closed    bool
	listeners map[string]net.Listener
	conns     map[net.Conn]struct{}
	controls  map[int16][]Control
	topics    map[string]struct{}
	groups    map[string]struct{}
	seeds     []string
}

// NewCluster returns a cluster whose seeded topics are there, and empty.
func NewCluster(opts ...Opt) (*Cluster, error) {
	var chosen settings
	for _, opt := range opts {
		opt(&chosen)
	}
	real := strings.Split(os.Getenv("KGO_SEEDS"), ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(real...))
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		client:    client,
		admin:     kadm.NewClient(client),
		listeners: map[string]net.Listener{},
		conns:     map[net.Conn]struct{}{},
		controls:  map[int16][]Control{},
		topics:    map[string]struct{}{},
		groups:    map[string]struct{}{},
	}
	for _, address := range real {
		seed, err := c.before(address)
		if err != nil {
			return nil, err
		}
		c.seeds = append(c.seeds, seed)
	}
	for _, topic := range chosen.topics {
		if err := c.make(topic); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// ListenAddrs returns where clients reach the cluster.
func (c *Cluster) ListenAddrs() []string { return slices.Clone(c.seeds) }

// ControlKey has a function called with each request of a kind, until it answers one.
func (c *Cluster) ControlKey(key int16, fn Control) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.controls[key] = append(c.controls[key], fn)
}

// Fault fails the next request that is chosen, by the error code at the top of its response.
func (c *Cluster) Fault(fault Fault) {
	for _, key := range fault.Keys {
		c.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			if fault.When != nil && !fault.When(req) {
				return nil, nil, false
			}
			resp := req.ResponseKind()
			heartbeat, ok := resp.(*kmsg.ConsumerGroupHeartbeatResponse)
			if !ok {
				return nil, fmt.Errorf("no faults of %T here", req), true
			}
			heartbeat.ErrorCode = fault.Err.Code
			return resp, nil, true
		})
	}
}

// Close deletes what the test has made, and ends all connections.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.closed = true
	for _, listener := range c.listeners {
		listener.Close()
	}
	for conn := range c.conns {
		conn.Close()
	}
	topics, groups := keys(c.topics), keys(c.groups)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	if len(topics) > 0 {
		c.admin.DeleteTopics(ctx, topics...)
	}
	if len(groups) > 0 {
		c.admin.DeleteGroups(ctx, groups...)
	}
	c.client.Close()
}

// make creates a topic that is empty, and returns when all its partitions are led.
func (c *Cluster) make(topic seeded) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	c.made(topic.name)
	replicas, err := strconv.Atoi(os.Getenv("KGO_TEST_RF"))
	if err != nil {
		replicas = 1
	}
	for {
		_, err := c.admin.CreateTopic(ctx, topic.partitions, int16(replicas), nil, topic.name)
		if err == nil {
			break
		}
		if !errors.Is(err, kerr.TopicAlreadyExists) || ctx.Err() != nil {
			return fmt.Errorf("creating %s: %w", topic.name, err)
		}
		c.admin.DeleteTopics(ctx, topic.name) // Left by a test that was ended.
		time.Sleep(pollInterval)
	}
	for {
		described, err := c.admin.ListTopics(ctx, topic.name)
		if err == nil && described[topic.name].Err == nil && led(described[topic.name]) == int(topic.partitions) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s has no leaders: %w", topic.name, ctx.Err())
		}
		time.Sleep(pollInterval)
	}
}

func led(topic kadm.TopicDetail) int {
	count := 0
	for _, partition := range topic.Partitions {
		if partition.Leader >= 0 && partition.Err == nil {
			count++
		}
	}
	return count
}

func (c *Cluster) made(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topics[topic] = struct{}{}
}

func (c *Cluster) joined(group string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[group] = struct{}{}
}

func keys(set map[string]struct{}) []string {
	var found []string
	for key := range set {
		found = append(found, key)
	}
	return found
}
