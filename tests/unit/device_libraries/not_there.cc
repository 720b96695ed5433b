// Stands for a library that another one needs and that is not there when that is loaded; or, alone, for a
// library that is no device.
extern "C" __attribute__((visibility("default"))) int weft_not_there() { return 0; }
