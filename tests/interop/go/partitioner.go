package main

// KeyedPartition returns the partition of a record with a key: Kafka's murmur2, without its sign.
func KeyedPartition(key []byte, partitions uint32) uint32 {
	const multiplier = 0x5bd1e995
	hash := 0x9747b28c ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		word := le.Uint32(key) * multiplier
		word = (word ^ word>>24) * multiplier
		hash = hash*multiplier ^ word
	}
	if len(key) > 0 {
		var tail [4]byte
		copy(tail[:], key)
		hash = (hash ^ le.Uint32(tail[:])) * multiplier
	}
	hash = (hash ^ hash>>13) * multiplier
	return ((hash ^ hash>>15) & 0x7fffffff) % partitions
}
