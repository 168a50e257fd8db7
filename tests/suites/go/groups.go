package kfake

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupInfo is what a cluster says of a group.
type GroupInfo struct {
	Group   string
	State   string
	Epoch   int32
	Members []GroupMember
	Commits map[string]map[int32]GroupCommit
}

// GroupMember is what it says of a member.
type GroupMember struct {
	MemberID         string
	InstanceID       *string
	ClientID         string
	ClientHost       string
	SubscribedTopics []string
	Assignment       map[string][]int32
}

// GroupCommit is a committed position.
type GroupCommit struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// NumAssigned returns how many partitions a member has.
func (m *GroupMember) NumAssigned() int {
	count := 0
	for _, partitions := range m.Assignment {
		count += len(partitions)
	}
	return count
}

// NumAssigned returns how many partitions all members have.
func (g *GroupInfo) NumAssigned() int {
	count := 0
	for at := range g.Members {
		count += g.Members[at].NumAssigned()
	}
	return count
}

// GroupInfo returns what the cluster says of a group; nil: there is none.
func (c *Cluster) GroupInfo(group string) *GroupInfo {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	info := c.consumerGroup(ctx, group)
	if info == nil {
		info = c.classicGroup(ctx, group)
	}
	if info == nil {
		return nil
	}
	slices.SortFunc(info.Members, func(l, r GroupMember) int { return cmp.Compare(l.MemberID, r.MemberID) })
	info.Commits = map[string]map[int32]GroupCommit{}
	committed, err := c.admin.FetchOffsets(ctx, group)
	if err != nil {
		return info
	}
	for topic, partitions := range committed {
		info.Commits[topic] = map[int32]GroupCommit{}
		for number, found := range partitions {
			info.Commits[topic][number] = GroupCommit{
				Offset: found.At, LeaderEpoch: found.LeaderEpoch, Metadata: found.Metadata,
			}
		}
	}
	return info
}

// WaitGroupStable returns a group once it is stable with so many members; -1: with any number.
//
// A real group of KIP-848 is also stable before its first assignment, where the fake is not. So a
// group without assignments counts only if it stays so.
func (c *Cluster) WaitGroupStable(ctx context.Context, group string, members int) (*GroupInfo, error) {
	unassignedUntil := time.Now().Add(settled)
	for {
		info := c.GroupInfo(group)
		if info != nil && info.State == "Stable" && (members < 0 || len(info.Members) == members) &&
			(info.NumAssigned() > 0 || time.Now().After(unassignedUntil)) {
			return info, nil
		}
		select {
		case <-ctx.Done():
			return info, ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

func (c *Cluster) consumerGroup(ctx context.Context, group string) *GroupInfo {
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Groups = []string{group}
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil || len(resp.Groups) != 1 || resp.Groups[0].ErrorCode != 0 {
		return nil
	}
	found := resp.Groups[0]
	info := &GroupInfo{Group: group, State: found.State, Epoch: found.Epoch}
	for _, member := range found.Members {
		assigned := map[string][]int32{}
		for _, topic := range member.Assignment.TopicPartitions {
			assigned[topic.Topic] = topic.Partitions
		}
		info.Members = append(info.Members, GroupMember{
			MemberID: member.MemberID, InstanceID: member.InstanceID, ClientID: member.ClientID,
			ClientHost: member.ClientHost, SubscribedTopics: member.SubscribedTopics,
			Assignment: assigned,
		})
	}
	return info
}

func (c *Cluster) classicGroup(ctx context.Context, group string) *GroupInfo {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil || len(resp.Groups) != 1 || resp.Groups[0].ErrorCode != 0 || resp.Groups[0].State == "Dead" {
		return nil
	}
	found := resp.Groups[0]
	info := &GroupInfo{Group: group, State: found.State}
	for _, member := range found.Members {
		var subscribed kmsg.ConsumerMemberMetadata
		var assignment kmsg.ConsumerMemberAssignment
		assigned := map[string][]int32{}
		if assignment.ReadFrom(member.MemberAssignment) == nil {
			for _, topic := range assignment.Topics {
				assigned[topic.Topic] = topic.Partitions
			}
		}
		_ = subscribed.ReadFrom(member.ProtocolMetadata) // Of another protocol: no topics.
		info.Members = append(info.Members, GroupMember{
			MemberID: member.MemberID, InstanceID: member.InstanceID, ClientID: member.ClientID,
			ClientHost: member.ClientHost, SubscribedTopics: subscribed.Topics, Assignment: assigned,
		})
	}
	return info
}
