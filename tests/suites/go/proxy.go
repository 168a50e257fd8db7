package kfake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	frameMax      = 256 << 20
	unansweredMax = 1024
	apiVersions   = 18
)

// answer is what a client waits for: the real broker's response, or a test's.
type answer struct {
	key     int16
	version int16
	given   []byte
}

// before returns the address of a proxy before a real broker.
func (c *Cluster) before(real string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return "", net.ErrClosed
	}
	listener, ok := c.listeners[real]
	if !ok {
		var err error
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", err
		}
		c.listeners[real] = listener
		go c.accept(listener, real)
	}
	return listener.Addr().String(), nil
}

func (c *Cluster) accept(listener net.Listener, real string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go c.serve(client, real)
	}
}

func (c *Cluster) serve(client net.Conn, real string) {
	defer client.Close()
	broker, err := net.Dial("tcp", real)
	if err != nil {
		return
	}
	defer broker.Close()
	if !c.keep(client, broker) {
		return
	}
	defer c.forget(client, broker)
	waiting := make(chan answer, unansweredMax)
	go func() {
		defer client.Close()
		defer broker.Close()
		for next := range waiting {
			if c.pass(next, broker, client) != nil {
				break
			}
		}
		for range waiting { // So that the other direction notices the end by its sockets.
		}
	}()
	defer close(waiting)
	for {
		frame, err := readFrame(client)
		if err != nil {
			return
		}
		next, passes, err := c.look(frame)
		if err != nil {
			return
		}
		if passes {
			if err := writeFrame(broker, frame); err != nil {
				return
			}
		}
		if next != nil {
			waiting <- *next
		}
	}
}

// look shows a request to the controls of its kind. It returns the answer to wait for, if there is
// one, and whether the real broker gets the request.
func (c *Cluster) look(frame []byte) (*answer, bool, error) {
	if len(frame) < 10 {
		return nil, false, errors.New("short frame")
	}
	key := int16(binary.BigEndian.Uint16(frame))
	version := int16(binary.BigEndian.Uint16(frame[2:]))
	correlation := frame[4:8]
	req := kmsg.RequestForKey(key)
	if req == nil || version > req.MaxVersion() {
		return nil, false, fmt.Errorf("unknown request %d of version %d", key, version)
	}
	req.SetVersion(version)
	body := frame[10:]
	if length := int16(binary.BigEndian.Uint16(frame[8:])); length > 0 {
		body = body[length:]
	}
	if req.IsFlexible() {
		body = body[1:] // No client here sends tags in the header.
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, false, err
	}
	c.remember(req)
	resp, err, handled := c.control(key, req)
	if err != nil {
		return nil, false, err
	}
	next := &answer{key: key, version: version}
	if handled {
		resp.SetVersion(version)
		next.given = append(next.given, correlation...)
		if resp.IsFlexible() && key != apiVersions {
			next.given = append(next.given, 0)
		}
		next.given = resp.AppendTo(next.given)
		return next, false, nil
	}
	if produce, ok := req.(*kmsg.ProduceRequest); ok && produce.Acks == 0 {
		return nil, true, nil
	}
	return next, true, nil
}

func (c *Cluster) control(key int16, req kmsg.Request) (kmsg.Response, error, bool) {
	c.mu.Lock()
	controls := append([]Control(nil), c.controls[key]...)
	c.mu.Unlock()
	for at, fn := range controls {
		if resp, err, handled := fn(req); handled {
			c.mu.Lock()
			c.controls[key] = append(controls[:at:at], c.controls[key][at+1:]...)
			c.mu.Unlock()
			return resp, err, true
		}
	}
	return nil, nil, false
}

// remember notes what there will be to delete.
func (c *Cluster) remember(req kmsg.Request) {
	switch req := req.(type) {
	case *kmsg.CreateTopicsRequest:
		for _, topic := range req.Topics {
			c.made(topic.Topic)
		}
	case *kmsg.JoinGroupRequest:
		c.joined(req.Group)
	case *kmsg.ConsumerGroupHeartbeatRequest:
		c.joined(req.Group)
	case *kmsg.OffsetCommitRequest:
		c.joined(req.Group)
	case *kmsg.TxnOffsetCommitRequest:
		c.joined(req.Group)
	}
}

// pass gives a client its next answer, with the addresses of proxies in it.
func (c *Cluster) pass(next answer, broker, client net.Conn) error {
	if next.given != nil {
		return writeFrame(client, next.given)
	}
	frame, err := readFrame(broker)
	if err != nil {
		return err
	}
	if frame, err = c.readdressed(next, frame); err != nil {
		return err
	}
	return writeFrame(client, frame)
}

func (c *Cluster) readdressed(next answer, frame []byte) ([]byte, error) {
	resp := kmsg.ResponseForKey(next.key)
	resp.SetVersion(next.version)
	head := 4
	if resp.IsFlexible() {
		head = 5
	}
	switch resp.(type) {
	case *kmsg.MetadataResponse, *kmsg.FindCoordinatorResponse, *kmsg.DescribeClusterResponse:
	default:
		return frame, nil
	}
	if len(frame) < head {
		return nil, errors.New("short response")
	}
	if err := resp.ReadFrom(frame[head:]); err != nil {
		return nil, err
	}
	var err error
	switch resp := resp.(type) {
	case *kmsg.MetadataResponse:
		for at := range resp.Brokers {
			err = errors.Join(err, c.replace(&resp.Brokers[at].Host, &resp.Brokers[at].Port))
		}
	case *kmsg.FindCoordinatorResponse:
		if resp.Port > 0 {
			err = c.replace(&resp.Host, &resp.Port)
		}
		for at := range resp.Coordinators {
			if found := &resp.Coordinators[at]; found.ErrorCode == 0 {
				err = errors.Join(err, c.replace(&found.Host, &found.Port))
			}
		}
	case *kmsg.DescribeClusterResponse:
		for at := range resp.Brokers {
			err = errors.Join(err, c.replace(&resp.Brokers[at].Host, &resp.Brokers[at].Port))
		}
	}
	return resp.AppendTo(frame[:head:head]), err
}

func (c *Cluster) replace(host *string, port *int32) error {
	proxy, err := c.before(net.JoinHostPort(*host, strconv.Itoa(int(*port))))
	if err != nil {
		return err
	}
	name, number, err := net.SplitHostPort(proxy)
	if err != nil {
		return err
	}
	to, err := strconv.Atoi(number)
	*host, *port = name, int32(to)
	return err
}

func (c *Cluster) keep(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		c.conns[conn] = struct{}{}
	}
	return !c.closed
}

func (c *Cluster) forget(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		delete(c.conns, conn)
	}
}

func readFrame(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length > frameMax {
		return nil, errors.New("a frame that is too large")
	}
	frame := make([]byte, length)
	_, err := io.ReadFull(from, frame)
	return frame, err
}

func writeFrame(to io.Writer, frame []byte) error {
	whole := binary.BigEndian.AppendUint32(make([]byte, 0, len(frame)+4), uint32(len(frame)))
	_, err := to.Write(append(whole, frame...))
	return err
}
