"""What record files of a job say: who was late, which links were slow, where ranks disagreed."""
