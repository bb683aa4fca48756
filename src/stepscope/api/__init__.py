"""What Python and the commands ask of a job: read, judge, show, compare, predict. One way for both."""
